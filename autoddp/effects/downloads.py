"""Downloads are requested once: by rank 0 first, then by one rank of each other node."""

from __future__ import annotations

import os
from functools import partial
from typing import Any, ClassVar

from autoddp.effects import responses
from autoddp.effects.effect_feature import EffectFeature, EffectRow, each
from autoddp.effects.ownership import whose
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
    *("httpx._client:AsyncClient.send", "httpx2._client:AsyncClient.send"),
    "aiohttp:ClientSession._request",
)
ASKED = (
    "every rank sends it; urllib.request, requests, urllib3, httpx and torch.hub send one for all "
    "ranks"
)


class Downloads(EffectFeature):
    """The feature for downloads: one rank requests a file or a response, and the others get it."""

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
        if self.effects.mode(by=whose) is not Mode.SYNCED:
            return call.plain()
        result = self.effects.ask_rank0(call.name, call.plain)  # None, or a path and headers
        path = result[0] if result else call.named.get("dst") or call.named["filename"]
        writers = self.effects.writers(os.path.expanduser(path))
        named = {} if "dst" in call.named else {"filename": path}  # else a temporary file's
        self.effects.repeat(call.name, lambda: call.changed(**named), writers)
        return result

    @patch(
        *responses.KINDS,
        why="one request for the job; all ranks get its response, and the body as they read it",
        optional=True,
    )
    def send_once(self, call: Call) -> Any:
        """Send a request on rank 0, and return its response on all ranks, whoever calls."""
        if self.effects.mode(by=whose) is not Mode.SYNCED:
            return call.plain()
        own = []

        def send() -> Any:
            own.append(call.plain())
            return kind.head(own[0])

        kind = responses.KINDS[call.target]
        head = self.effects.ask_rank0(call.name, send)
        body = partial(self.of_rank0, "the body of a response")
        return kind.response(own[0] if own else None, head, body, call)
