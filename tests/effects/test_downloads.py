import os
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

import pytest
import torch

from autoddp.effects.downloads import Downloads
from autoddp.effects.files import Files
from autoddp.effects.folders import Folders
from tests.effects.outward import on_ranks, raised
from tests.support import archives


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    archives.make(folder)
    (folder / "hello").write_text("hello\n")
    torch.save({"w": torch.ones(2)}, folder / "w.pt")
    with archives.serving(folder) as serving:
        yield serving


@pytest.fixture
def on(tmp_path, server):
    """`on(script)`: the results on 2 ranks, and the requests to the server."""

    def on(script, nproc=2, **more):
        before = server.requests.copy()
        seen = on_ranks(script, nproc, Downloads, Files, Folders, folder=tmp_path, **more)
        return seen, dict(server.requests - before)

    return on


def mnist(run):
    from torchvision.datasets import MNIST

    data = MNIST("data", train=True, download=True)
    again = MNIST("data", train=False, download=True)
    return len(data), len(again), int(data[5][1])


def cifar(run):
    from torchvision.datasets import CIFAR10

    found = len(CIFAR10("data", download=True)), sorted(os.listdir("data"))
    return *found, run.effects.overlay.idle()


@pytest.mark.filterwarnings("ignore:Python 3.14 will, by default, filter extracted tar archives")
@pytest.mark.parametrize(("script", "nproc"), [(mnist, 3), (cifar, 2)], ids=["mnist", "cifar"])
def test_a_torchvision_data_set_is_requested_as_by_one_process(on, server, script, nproc, tmp_path):
    def pointed(run):
        archives.point_torchvision(server.url)
        return script(run)

    alone, asked = on(pointed, 1)
    for file in tmp_path.rglob("*"):
        if file.is_file():
            file.unlink()
    assert on(pointed, nproc) == (alone * nproc, asked)


def test_weights_are_requested_once_and_kept(on, server, tmp_path):
    def script(run):
        load, url = torch.hub.load_state_dict_from_url, f"{server.url}/w.pt"
        loaded = [load(url, "hub", progress=False)["w"].tolist() for _ in range(2)]
        return loaded, run.effects.overlay.idle()  # no rank has written a copy

    assert on(script, 3) == ([([[1.0, 1.0]] * 2, True)] * 3, {"w.pt": 1})
    assert os.listdir(tmp_path / "hub") == ["w.pt"]


def test_a_large_body_comes_from_one_request_as_it_is_read(on, server):
    size = (16 << 20) + 5
    (server.folder / "big").write_bytes(os.urandom(size))

    def script(run):
        with urllib.request.urlopen(f"{server.url}/big") as response:
            parts = iter(lambda: response.read(1 << 20), b"")
            return sha256(b"".join(parts)).hexdigest(), run.report.of("downloads")

    seen, asked = on(script)
    assert seen == [(sha256((server.folder / "big").read_bytes()).hexdigest(), [])] * 2
    assert asked == {"big": 1}


def test_a_body_is_out_of_reach_of_other_ranks_threads(on, server):
    def script(run):
        response = urllib.request.urlopen(f"{server.url}/hello")
        with ThreadPoolExecutor(1) as pool:
            return raised(lambda: pool.submit(response.read).result())

    seen, _ = on(script)
    assert [kind for kind, _ in seen] == ["", "OutOfReach"]
    assert seen[1][1].startswith("the body of a response: it is rank 0's, which other ranks cannot")
