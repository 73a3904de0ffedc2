"""What goes wrong on the way from a server goes wrong on all ranks as in one process."""

from __future__ import annotations

import ctypes
import importlib
import os
import socket
import struct
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from autoddp.effects.downloads import Downloads
from autoddp.effects.files import Files
from autoddp.effects.folders import Folders
from tests.effects.outward import on_ranks, raised
from tests.support import archives

BODY = bytes(range(256)) * 4096  # more than fits in the buffers of a connection
HALF = len(BODY) // 2
CLONE_NEWNET = 0x40000000


class Broken(archives.Files):
    """A file server of which the path says what goes wrong."""

    def do_GET(self) -> None:
        kind = os.path.basename(self.path).partition("-")[0]
        self.counts[kind] += 1
        if kind == "500":
            self.send_error(500)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY if kind == "whole" else BODY[:HALF])
        self.wfile.flush()
        if kind == "reset":  # gone without a farewell
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        self.close_connection = True


class Server(archives.Server):
    """It answers as `Broken` does."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.RequestHandlerClass = Broken


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    importlib.import_module("torchvision.datasets.utils")  # once, for all ranks
    with archives.serving(tmp_path_factory.mktemp("served"), Server) as serving:
        yield serving


def _download_url(url: str) -> object:
    from torchvision.datasets.utils import download_url

    return download_url(url, "data", "mine")


# How a file is asked for; each makes data/mine, and nothing else.
WAYS = {
    "urlretrieve": lambda url: urllib.request.urlretrieve(url, "data/mine"),
    "hub": lambda url: torch.hub.download_url_to_file(url, "data/mine", progress=False),
    "hub's hash": lambda url: torch.hub.download_url_to_file(
        url, "data/mine", "0000", progress=False
    ),
    "weights": lambda url: torch.hub.load_state_dict_from_url(
        url, "data", file_name="mine", progress=False
    ),
    "torchvision": _download_url,
}
NOWHERE = "no route"
ERRORS = {
    "500": ("HTTPError",),
    "cut": ("ContentTooShortError",),
    "reset": ("ConnectionResetError",),
    NOWHERE: ("URLError",),
}


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("old", [False, True], ids=["new", "over an old file"])
def test_what_breaks_off_is_what_one_process_meets(kind, old, server, tmp_path):
    """torchvision does not ask for what is there, and the loader of weights neither."""
    if kind == NOWHERE and os.geteuid():
        pytest.skip("a network of its own takes root")
    ways = [way for way in WAYS if not (old and way in ("weights", "torchvision"))]

    def script(run):
        found = []
        for way in ways:
            with suppress(FileNotFoundError):
                os.remove("data/mine")
            if old:
                Path("data/mine").write_text("old")
            said = raised(lambda way=way: WAYS[way](address(kind, server)))
            found.append((*said, os.listdir("data")))
        return found

    seen, asked = [], []
    for nproc in (1, 3):
        folder = tmp_path / str(nproc)
        os.makedirs(folder / "data")
        before = server.requests[kind]
        features = (Downloads, Files, Folders) if nproc > 1 else ()
        seen += on_ranks(script, nproc, *features, folder=folder, before=leave(kind))
        asked.append(server.requests[kind] - before)
    assert seen == [seen[0]] * 4
    assert asked == [asked[0]] * 2
    assert ERRORS[kind] in [found[:1] for found in seen[0]], seen[0]


def test_a_file_that_is_not_what_its_name_says(server, tmp_path):
    os.makedirs(tmp_path / "data")
    seen = on_ranks(
        lambda run: raised(lambda: WAYS["hub's hash"](address("whole", server))),
        2,
        Downloads,
        folder=tmp_path,
    )
    assert seen[0] == seen[1]
    assert seen[0][0] == "RuntimeError"
    assert 'invalid hash value (expected "0000"' in seen[0][1]
    assert os.listdir(tmp_path / "data") == []


@pytest.mark.parametrize("way", ["urlretrieve", "hub", "torchvision"])
def test_what_comes_whole_is_there(way, server, tmp_path):
    os.makedirs(tmp_path / "data")
    seen = on_ranks(
        lambda run: (
            raised(lambda: WAYS[way](address("whole", server))),
            Path("data/mine").read_bytes() == BODY,
        ),
        2,
        Downloads,
        Files,
        Folders,
        folder=tmp_path,
    )
    assert seen == [(("", ""), True)] * 2
    assert os.listdir(tmp_path / "data") == ["mine"]


def address(kind: str, server: archives.Server) -> str:
    """Where this goes wrong."""
    return f"{server.url}/{kind.replace(' ', '')}-file"


def leave(kind: str) -> Callable[[int], None]:
    """With `NOWHERE` a rank is on a network of its own, where not even the loopback is up."""

    def go(rank: int) -> None:
        if kind == NOWHERE and ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
            raise PermissionError(ctypes.get_errno(), "a network of its own takes root")

    return go
