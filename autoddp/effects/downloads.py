"""What the script downloads comes once: rank 0 first, then one rank of each node, then all."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from http.client import HTTPResponse
from typing import Any, ClassVar
from urllib.parse import urlsplit
from urllib.response import addinfourl

from autoddp.comm.topology import leaders
from autoddp.effects.engine import Mode
from autoddp.effects.outward import EffectRow, Outward, each
from autoddp.patching import Call, patch
from autoddp.report import users_line

MODELS = (
    *("torch.hub:load", "torch.hub:load_state_dict_from_url", "torch.utils.model_zoo:load_url"),
    "torchvision._internally_replaced_utils:load_state_dict_from_url",
    "torchvision.models._api:load_state_dict_from_url",
)
MAKERS = (  # of the files of a data set
    *(f"torchvision.datasets.utils:{of}" for of in ("download_url", "extract_archive")),
    "torchvision.datasets.utils:download_and_extract_archive",
    "torchvision.datasets.utils:download_file_from_google_drive",
)
ASKERS = (
    *("http.client:HTTPConnection.connect", "urllib3.connection:HTTPConnection.connect"),
    *("httpx:Client.send", "httpx:AsyncClient.send", "aiohttp:ClientSession._request"),
)
ASKED = "every rank asks the network; urllib.request, requests and torch.hub ask once for all"
LIMIT = 64 << 20  # bytes of a body that are handed to the other ranks
TOO_LARGE = (
    f"{{}} is not handed from rank to rank, which bodies of up to {LIMIT >> 20} MB by http are: "
    "every rank asks for it; urllib.request.urlretrieve asks once"
)


class Downloads(Outward):
    """The script's downloads: ranks that come later find the file, or are handed the body."""

    name: ClassVar[str] = "downloads"
    libraries: ClassVar[bool] = True
    without: ClassVar[str] = "every rank asks for what it downloads"
    rows: ClassVar[tuple[EffectRow, ...]] = (each(ASKERS, why=ASKED, harmless=True, optional=True),)

    @patch(*MODELS, *MAKERS, why="one request for a disk, whoever asks", optional=True)
    def load_in_turn(self, call: Call) -> Any:
        """Load on rank 0, once all have looked for the file, and on the first rank of each node.

        The others load what is there then; of what makes files alone they get the answer.
        """
        made, answer, makes = [], None, call.target in MAKERS
        if self.effects.mode() is not Mode.SYNCED:
            return call.plain()

        def load() -> Any:
            made.append(call.plain())
            return made[0] if makes else None

        site = f"{call.name} at {users_line(1)}"
        with self.context.internal():
            for leader in leaders(self.effects.group):
                answer = self.run.group.call(site, load, by=leader, all_here=True)
            return made[0] if made else answer if makes else call.plain()

    @patch(
        *("torch.hub:download_url_to_file", "urllib.request:urlretrieve"),
        "torchvision.datasets.utils:_urlretrieve",
        why="one request for a disk",
        optional=True,
    )
    def load_once(self, call: Call) -> Any:
        """Load a file on rank 0, and on nodes that lack its folder: these never look for it."""
        if self.effects.users() is not Mode.SYNCED:
            return call.plain()
        made = self.effects.ask_rank0(call.name, call.plain)  # None, or a path and headers
        path = made[0] if made else call.named.get("dst") or call.named["filename"]
        writers = self.effects.writers(os.path.expanduser(path))
        named = {} if "dst" in call.named else {"filename": path}  # else a temporary file's
        self.effects.repeat(call.name, lambda: call.changed(**named), writers)
        return made

    @patch(
        *("urllib.request:urlopen", "torch.hub:urlopen", "pandas.io.common:urlopen"),
        why="one request for the job; the body is handed on",
        optional=True,
    )
    def open_once(self, call: Call) -> Any:
        """Ask on rank 0, and hand the response to all ranks."""
        url: Any = call.args[0] if call.args else call.named.get("url")
        return self._hand_on(call, str(getattr(url, "full_url", url)), read, answer)

    @patch(
        "requests.sessions:Session.request",
        why="one request for the job; it is handed on",
        optional=True,
    )
    def request_once(self, call: Call) -> Any:
        """Ask on rank 0, and hand the response to all ranks, like `open_once`."""
        url = str(call.named.get("url"))
        made = self._hand_on(call, url, read_requests, answer_requests)
        for response in (*made.history, made):
            call.instance.cookies.update(response.cookies)
        return made

    def _hand_on(
        self, call: Call, url: str, read: Callable[[Any], Any], answer: Callable[[Any], Any]
    ) -> Any:
        """Return what rank 0 was answered; ask on every rank for what is not handed on."""
        package = sys.modules[call.target.partition(":")[0].partition(".")[0]]
        through = os.path.dirname(package.__file__ or "") + "/"
        if self.effects.users(through=(through,)) is not Mode.SYNCED:
            return call.plain()
        found = self.effects.ask_rank0(call.name, lambda: read(call.plain()))
        if found is not None:
            return answer(found)
        if urlsplit(url).scheme not in ("file", "data"):  # there nobody is asked
            self.run.report.say_once("downloads", users_line(), TOO_LARGE.format(url))
        with self.context.internal():
            return call.plain()


def read(response: Any) -> tuple[Any, ...] | None:
    """Read a response of `urlopen`; return None if it is not to be handed on.

    That is a body of more than `LIMIT`, and what has come from no web server.
    """
    with response:
        if not isinstance(response, HTTPResponse) or (response.length or 0) > LIMIT:
            return None
        # with a size, `read` would take an early end for that of the body
        body = response.read() if response.length is not None else response.read(LIMIT + 1)
    head = response.reason, response.headers, response.url, response.status
    return None if len(body) > LIMIT else (body, *head)


def answer(found: tuple[Any, ...]) -> Any:
    """Return a response made of what `read` returned."""
    body, reason, headers, url, status = found
    made: Any = addinfourl(io.BytesIO(body), headers, url, status)
    made.reason = made.msg = reason
    made.getheader, made.getheaders = headers.get, headers.items
    return made


def read_requests(response: Any) -> Any:
    """Return a response of requests with its body read, None if that is more than `LIMIT`."""
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
