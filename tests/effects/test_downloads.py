import os
import urllib.request
from pathlib import Path
from urllib.error import HTTPError, URLError

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
    """`on(script)`: what it returns on 2 ranks, and what the server was asked meanwhile."""

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

    return len(CIFAR10("data", download=True)), sorted(os.listdir("data"))


@pytest.mark.filterwarnings("ignore:Python 3.14 will, by default, filter extracted tar archives")
@pytest.mark.parametrize(("script", "nproc"), [(mnist, 3), (cifar, 2)], ids=["mnist", "cifar"])
def test_a_data_set_of_torchvision_is_asked_for_as_one_process_asks(
    on, server, script, nproc, tmp_path
):
    def pointed(run):
        archives.point_torchvision(server.url)
        return script(run)

    alone, asked = on(pointed, 1)
    for file in tmp_path.rglob("*"):
        if file.is_file():
            file.unlink()
    assert on(pointed, nproc) == (alone * nproc, asked)


def test_weights_are_loaded_once_and_by_all(on, server, tmp_path):
    def script(run):
        loaded = torch.hub.load_state_dict_from_url(f"{server.url}/w.pt", "weights", progress=False)
        return loaded["w"].tolist()

    assert on(script, 3) == ([[1.0, 1.0]] * 3, {"w.pt": 1})


def test_files_are_retrieved_once(on, server, tmp_path):
    def script(run):
        path, headers = urllib.request.urlretrieve(f"{server.url}/hello", "mine")
        torch.hub.download_url_to_file(f"{server.url}/hello", "other", progress=False)
        return path, headers["Content-Length"], Path(path).read_text(), Path("other").read_text()

    assert on(script, 3) == ([("mine", "6", "hello\n", "hello\n")] * 3, {"hello": 2})
    assert sorted(os.listdir(tmp_path)) == ["mine", "other"]


def test_a_body_is_handed_to_all(on, server):
    def script(run):
        with urllib.request.urlopen(f"{server.url}/hello") as response:
            first = response.status, response.getheader("Content-Length"), response.read()
        asked = urllib.request.Request(f"{server.url}/hello")
        return first, list(urllib.request.urlopen(asked)), urllib.request.urlopen(asked).url

    assert on(script, 3) == (
        [((200, "6", b"hello\n"), [b"hello\n"], f"{server.url}/hello")] * 3,
        {"hello": 3},
    )


def test_a_table_that_pandas_reads_from_an_address_is_asked_for_once(on, server):
    (server.folder / "table.csv").write_text("a,b\n1,2\n")
    (server.folder / "table.json").write_text('[{"a": 1, "b": 2}]')

    def script(run):
        pandas = pytest.importorskip("pandas")
        csv = pandas.read_csv(f"{server.url}/table.csv")
        json = pandas.read_json(f"{server.url}/table.json")
        return csv.values.tolist(), json.values.tolist(), len(run.report.of("downloads"))

    seen, asked = on(script, 3)
    assert seen == [([[1, 2]], [[1, 2]], 0)] * 3
    assert asked == {"table.csv": 1, "table.json": 1}


def test_a_body_too_large_to_hand_on_is_asked_for_by_each_rank_and_that_is_said(
    on, server, monkeypatch
):
    monkeypatch.setattr("autoddp.effects.downloads.LIMIT", 1000)
    (server.folder / "big").write_bytes(bytes(5000))

    def script(run):
        length = len(urllib.request.urlopen(f"{server.url}/big").read())
        return length, [d.what for d in run.report.of("downloads")]

    seen, asked = on(script)
    assert [length for length, _ in seen] == [5000, 5000]
    assert "every rank asks for it" in seen[0][1][0]
    assert asked == {"big": 3}


def test_a_failure_is_raised_on_all_ranks_as_it_is_on_one(on, server, tmp_path):
    def script(run):
        errors = []
        for act in (
            lambda: urllib.request.urlopen(f"{server.url}/none"),
            lambda: urllib.request.urlretrieve(f"{server.url}/none", "x"),
            lambda: torch.hub.load_state_dict_from_url(f"{server.url}/none", "w", progress=False),
            lambda: urllib.request.urlopen("http://127.0.0.1:1/"),
            lambda: urllib.request.urlopen("nonsense"),
        ):
            try:
                act()
            except HTTPError as error:
                errors.append((error.code, str(error), error.url, error.read()[:15]))
            except (URLError, ValueError) as error:
                errors.append((type(error).__name__, str(error)))
        return errors

    seen, asked = on(script, 3)
    assert seen == [seen[0]] * 3
    assert asked == {"none": 3}
    assert seen[0][0][:2] == (404, "HTTP Error 404: File not found")
    assert seen[0][4] == ("ValueError", "unknown url type: 'nonsense'")


def test_a_data_set_that_is_not_downloaded_is_plain(on, tmp_path):
    def script(run):
        from torchvision.datasets import MNIST

        if run.world.rank == 0:
            return raised(lambda: MNIST("nowhere"))[0]
        return "not here"

    assert on(script)[0] == ["RuntimeError", "not here"]
