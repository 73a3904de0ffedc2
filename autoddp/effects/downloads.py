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

DATA = "torchvision.datasets.utils:"
FILES = (
    *("torch.hub:download_url_to_file", "urllib.request:urlretrieve"),
    *(f"{DATA}{name}" for name in ("_urlretrieve", "download_url", "extract_archive")),
    *(f"{DATA}download_{what}" for what in ("and_extract_archive", "file_from_google_drive")),
)
# The arguments that say where these make files.
TO = ("dst", "extract_root", "to_path", "download_root", "root", "filename", "from_path")
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

    @patch(*FILES, why="one request per disk, whoever calls", optional=True)
    def load_once(self, call: Call) -> Any:
        """Make files on rank 0, and on each node that does not share their folder."""
        if self.effects.mode(by=whose) is not Mode.SYNCED:
            return call.plain()
        result = self.effects.do_on_rank0(call.name, call.plain)
        made = {"filename": result[0]} if isinstance(result, tuple) else {}  # maybe a temporary one
        path = next(path for name in TO if (path := {**call.named, **made}.get(name)))
        writers = self.effects.writers(os.path.expanduser(path))
        self.effects.repeat(call.name, lambda: call.changed(**made), writers)
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
