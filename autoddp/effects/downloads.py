"""Downloads are requested once: by rank 0 first, then by one rank of each other node."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from http.client import HTTPResponse
from typing import Any, ClassVar
from urllib.parse import urlsplit
from urllib.response import addinfourl

from autoddp.effects.effect_feature import EffectFeature, EffectRow, each
from autoddp.effects.ownership import scripts
from autoddp.effects.who_acts import Mode
from autoddp.patching import Call, patch
from autoddp.report import users_line

MODELS = (
    *("torch.hub:load", "torch.hub:load_state_dict_from_url", "torch.utils.model_zoo:load_url"),
    "torchvision._internally_replaced_utils:load_state_dict_from_url",
    "torchvision.models._api:load_state_dict_from_url",
)
MAKERS = (  # functions that only make files of a data set
    *(f"torchvision.datasets.utils:{function}" for function in ("download_url", "extract_archive")),
    "torchvision.datasets.utils:download_and_extract_archive",
    "torchvision.datasets.utils:download_file_from_google_drive",
)
ASKERS = (
    *("http.client:HTTPConnection.connect", "urllib3.connection:HTTPConnection.connect"),
    *("httpx:Client.send", "httpx:AsyncClient.send", "aiohttp:ClientSession._request"),
)
ASKED = "every rank sends it; urllib.request, requests and torch.hub send one for all ranks"
LIMIT = 64 << 20  # the largest body, in bytes, that rank 0 sends to the other ranks
TOO_LARGE = (
    f"every rank requests {{}}, as rank 0 only shares HTTP bodies of up to {LIMIT >> 20} MB; "
    "urllib.request.urlretrieve requests it once"
)


class Downloads(EffectFeature):
    """The feature for downloads: one rank requests a file or a body, and the others get it."""

    name: ClassVar[str] = "downloads"
    libraries: ClassVar[bool] = True
    without: ClassVar[str] = "every rank requests every download"
    rows: ClassVar[tuple[EffectRow, ...]] = (each(ASKERS, why=ASKED, harmless=True, optional=True),)

    @patch(*MODELS, *MAKERS, why="one request per disk, whoever calls", optional=True)
    def load_in_turn(self, call: Call) -> Any:
        """Load on rank 0, once all ranks have made the call, and on the first rank of each node.

        The other ranks then load the file that is there; if the call only makes files, they get its
        result.
        """
        loaded, answer, makes = [], None, call.target in MAKERS
        if self.effects.mode() is not Mode.SYNCED:
            return call.plain()

        def load() -> Any:
            loaded.append(call.plain())
            return loaded[0] if makes else None

        site = f"{call.name} at {users_line(1)}"
        with self.context.internal():
            for leader in self.effects.group.leaders():
                answer = self.run.group.call(site, load, by=leader, all_here=True)
            return loaded[0] if loaded else answer if makes else call.plain()

    @patch(
        *("torch.hub:download_url_to_file", "urllib.request:urlretrieve"),
        "torchvision.datasets.utils:_urlretrieve",
        why="one request per disk",
        optional=True,
    )
    def load_once(self, call: Call) -> Any:
        """Load a file on rank 0, and on each node that does not share its folder."""
        if self.effects.mode(by=scripts()) is not Mode.SYNCED:
            return call.plain()
        result = self.effects.ask_rank0(call.name, call.plain)  # None, or a path and headers
        path = result[0] if result else call.named.get("dst") or call.named["filename"]
        writers = self.effects.writers(os.path.expanduser(path))
        named = {} if "dst" in call.named else {"filename": path}  # else a temporary file's
        self.effects.repeat(call.name, lambda: call.changed(**named), writers)
        return result

    @patch(
        *("urllib.request:urlopen", "torch.hub:urlopen", "pandas.io.common:urlopen"),
        why="one request for the job; rank 0 sends the body to the others",
        optional=True,
    )
    def open_once(self, call: Call) -> Any:
        """Send the request on rank 0, and return the response on all ranks."""
        url: Any = call.args[0] if call.args else call.named.get("url")
        return self._share(call, str(getattr(url, "full_url", url)), read, answer)

    @patch(
        "requests.sessions:Session.request",
        why="one request for the job; rank 0 sends the response to the others",
        optional=True,
    )
    def request_once(self, call: Call) -> Any:
        """Send the request on rank 0, and return the response on all ranks, like `open_once`."""
        url = str(call.named.get("url"))
        response = self._share(call, url, read_requests, answer_requests)
        for one in (*response.history, response):
            call.instance.cookies.update(one.cookies)
        return response

    def _share(
        self, call: Call, url: str, read: Callable[[Any], Any], answer: Callable[[Any], Any]
    ) -> Any:
        """Return rank 0's response; if it cannot be shared, send the request on every rank."""
        package = sys.modules[call.target.partition(":")[0].partition(".")[0]]
        through = os.path.dirname(package.__file__ or "") + "/"
        if self.effects.mode(by=scripts(through)) is not Mode.SYNCED:
            return call.plain()
        shared = self.effects.ask_rank0(call.name, lambda: read(call.plain()))
        if shared is not None:
            return answer(shared)
        if urlsplit(url).scheme not in ("file", "data"):  # these send no request
            self.run.report.say_once("downloads", users_line(), TOO_LARGE.format(url))
        with self.context.internal():
            return call.plain()


def read(response: Any) -> tuple[Any, ...] | None:
    """Read a response of `urlopen`; return None if it cannot be shared.

    It cannot if its body exceeds `LIMIT`, or if it does not come from a web server.
    """
    with response:
        if not isinstance(response, HTTPResponse) or (response.length or 0) > LIMIT:
            return None
        # with a size, `read` would not notice that the body ends early
        body = response.read() if response.length is not None else response.read(LIMIT + 1)
    rest = response.reason, response.headers, response.url, response.status
    return None if len(body) > LIMIT else (body, *rest)


def answer(parts: tuple[Any, ...]) -> Any:
    """Make a response of what `read` returned."""
    body, reason, headers, url, status = parts
    response: Any = addinfourl(io.BytesIO(body), headers, url, status)
    response.reason = response.msg = reason
    response.getheader, response.getheaders = headers.get, headers.items
    return response


def read_requests(response: Any) -> Any:
    """Return a response of requests with its body read, None if the body exceeds `LIMIT`."""
    body = b""
    with response:
        for part in response.iter_content(1 << 20):  # a stream may have no end
            body += part
            if len(body) > LIMIT:
                return None
    response._content = body
    return response


def answer_requests(response: Any) -> Any:
    """Return the response of requests with a body that can be read as a stream, too."""
    response.raw = io.BytesIO(response.content)
    return response
