"""Writers where a library calls them for itself, where they add to a file, where nobody waits."""

from __future__ import annotations

import os
import threading
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from autoddp.effects.files import Files
from autoddp.effects.folders import Folders
from autoddp.effects.temporary import Temporary
from tests.effects.outward import on_ranks, raised

pytestmark = pytest.mark.slow

NEEDED = ("pandas", "pyarrow", "h5py", "safetensors", "tensorboard", "wandb", "joblib")
needs_pandas = pytest.mark.skipif(not find_spec("pandas"), reason="pandas is not installed")
needs_joblib = pytest.mark.skipif(not find_spec("sklearn"), reason="scikit-learn is not installed")
if find_spec("joblib"):
    import joblib  # before a session: it keeps `open` and `os.replace` by names of its own


@pytest.fixture
def on(tmp_path):
    """`on(script)`: what it returns on 2 ranks, run in tmp_path."""

    def run(script, nproc=2, **more):
        return on_ranks(script, nproc, Files, Folders, Temporary, folder=tmp_path, **more)

    return run


def library(folder, text):
    """The functions of a library that is installed there."""
    path = folder / "site-packages" / "lib.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    space = {}
    exec(compile(text, str(path), "exec"), space)
    return space


@needs_pandas
def test_what_adds_to_a_file_keeps_what_was_there(on, tmp_path):
    (tmp_path / "log.csv").write_text("a\n0\n")
    Image.new("RGB", (4, 4)).save(tmp_path / "pages.pdf")

    def script(run):
        import pandas as pd

        rank = run.world.rank
        seen = []
        for step in (1, 2):
            pd.DataFrame({"a": [step + rank]}).to_csv(
                "log.csv", mode="a", header=False, index=False
            )
            seen.append(Path("log.csv").read_text())
        pd.DataFrame({"a": [1]}).to_json("log.jsonl", orient="records", lines=True, mode="a")
        pd.DataFrame({"a": [2]}).to_json("log.jsonl", orient="records", lines=True, mode="a")
        Image.new("RGB", (4, 4)).save("pages.pdf", append=True)
        pages = Path("pages.pdf").read_bytes().count(b"/Type /Page\n")
        return seen, Path("log.jsonl").read_text(), pages

    # PDFs grow: the first is in it twice
    told = (["a\n0\n1\n", "a\n0\n1\n2\n"], '{"a":1}\n{"a":2}\n', 3)
    assert on(script, 3) == [told] * 3
    assert (tmp_path / "log.csv").read_text() == "a\n0\n1\n2\n"


@needs_pandas
def test_what_is_no_path_is_left_alone(on, tmp_path):
    def script(run):
        import io

        import pandas as pd

        rank = run.world.rank
        frame = pd.DataFrame({"a": [rank]})
        buffer = io.BytesIO()
        Image.new("L", (1, 1), rank).save(buffer, "png")
        np.save(buffer, np.array(rank))
        with open("open.csv", "w") as file:
            frame.to_csv(file)
        text = frame.to_csv(), frame.to_csv(None), frame.to_json()
        return text, Path("open.csv").read_text(), os.listdir(".")

    zero, one = on(script)
    assert zero[0] == (",a\n0,0\n", ",a\n0,0\n", '{"a":{"0":0}}')
    assert one[0] == (",a\n0,1\n", ",a\n0,1\n", '{"a":{"0":1}}')
    assert zero[1] == ",a\n0,0\n"
    assert zero[2] == one[2] == ["open.csv"]
    assert (tmp_path / "open.csv").read_text() == zero[1]


def test_names_in_bytes_and_names_that_tell_ranks_apart(on, tmp_path):
    def script(run):
        rank = run.world.rank
        Image.new("L", (1, 1), rank).save(b"bytes.png")
        np.save(f"name-{rank}", np.array(rank))  # without its suffix
        torch.save(rank, Path(f"{rank}.pt"))
        return (
            Image.open("bytes.png").getpixel((0, 0)),
            int(np.load(open(f"name-{rank}.npy", "rb"))),
            torch.load(open(f"{rank}.pt", "rb")),
        )

    assert on(script) == [(0, 0, 0)] * 2
    assert sorted(os.listdir(tmp_path)) == ["0.pt", "bytes.png", "name-0.npy"]


def test_a_failure_in_the_midst_leaves_the_old_file_and_is_told_to_all(on, tmp_path):
    (tmp_path / "old.png").write_text("old")

    def script(run):
        return raised(lambda: Image.new("L", (2, 2)).save("old.png", format="nonsense")), raised(
            lambda: np.save("old.png", np.array([lambda: 0]), allow_pickle=False)
        )

    zero, one = on(script)
    assert zero == one
    assert [kind for kind, _ in zero] == ["KeyError", "ValueError"]
    assert (tmp_path / "old.png").read_text() == "old"
    assert os.listdir(tmp_path) == ["old.png"]


def test_a_library_that_saves_into_a_missing_folder_fails_on_all(on, tmp_path):
    save = library(tmp_path, "def save(x, path):\n    x.save(path)\n")["save"]
    (tmp_path / "there").mkdir()

    def script(run):
        picture = Image.new("L", (2, 2))
        seen = [raised(lambda: save(picture, "no/a.png")), raised(lambda: save(picture, "there/a"))]
        os.mkdir("no")
        seen.append(raised(lambda: save(picture, "no/a.png")))
        return seen, Image.open("no/a.png").size

    zero, one = on(script)
    assert zero == one
    assert zero[0][0] == (
        "FileNotFoundError",
        "[Errno 2] No such file or directory: 'no/a.png'",
    )
    assert [kind for kind, _ in zero[0]] == ["FileNotFoundError", "ValueError", ""]


def test_what_a_library_writes_is_rank_0s_for_all(on, tmp_path):
    made = library(
        tmp_path,
        "import tempfile, os, numpy as np\n"
        "def cache(value):\n"
        "    folder = tempfile.mkdtemp()\n"
        "    np.save(os.path.join(folder, 'x.npy'), value)\n"
        "    return int(np.load(os.path.join(folder, 'x.npy')))\n"
        "def keep(value):\n"
        "    np.save('kept.npy', value)\n",
    )

    def script(run):
        rank = run.world.rank
        made["keep"](rank)
        return made["cache"](rank), int(np.load("kept.npy"))

    assert on(script) == [(0, 0)] * 2
    assert int(np.load(tmp_path / "kept.npy")) == 0


def test_a_thread_reads_what_it_wrote(on, tmp_path):
    def script(run):
        rank, seen = run.world.rank, []

        def work():
            np.save("thread", np.array(rank))
            with open("thread.npy", "rb") as file:
                seen.append(int(np.load(file)))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        run.group.barrier()
        return seen

    assert on(script) == [[0], [1]]
    assert int(np.load(tmp_path / "thread.npy")) == 0


def test_the_fetch_of_a_data_set_and_its_workers_keep_their_own_files(on, tmp_path):
    class Cached(torch.utils.data.Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, at):
            name = f"{os.getpid()}-{at}.png"
            Image.new("L", (1, 1), at).save(name)
            return Image.open(name).getpixel((0, 0))

    def script(run):
        return [
            [int(x) for x in torch.utils.data.DataLoader(Cached(), num_workers=workers)]
            for workers in (0, 1)
        ]

    assert on(script) == [[[0, 1], [0, 1]]] * 2
    assert len(os.listdir(tmp_path)) == 8


@needs_joblib
def test_joblib_and_its_workers(on, tmp_path):
    def script(run):
        import sklearn.linear_model

        rank = run.world.rank
        memory = joblib.Memory(f"cache-{rank}", verbose=0)
        square = memory.cache(np.square)
        twice = [square(np.arange(3)).tolist() for _ in range(2)]
        big = np.full(200_000, 1.5)  # more than is sent to workers by pipe
        with joblib.parallel_config("loky", n_jobs=2):
            sums = joblib.Parallel()(joblib.delayed(np.sum)(big) for _ in range(2))
        model = sklearn.linear_model.LinearRegression(n_jobs=2).fit(np.eye(3), np.arange(3))
        joblib.dump((rank, model.coef_.shape), "model.joblib")
        return twice, [float(s) for s in sums], joblib.load("model.joblib")

    assert on(script) == [([[0, 1, 4]] * 2, [300_000.0] * 2, (0, (3,)))] * 2
    assert "model.joblib" in os.listdir(tmp_path)


@pytest.mark.skipif(not all(map(find_spec, NEEDED)), reason=f"needs {', '.join(NEEDED)}")
def test_a_script_that_logs_by_what_packages_offer(warm, tmp_path):
    script = str(Path(__file__).with_name("uses_libraries.py"))
    alone = warm.run("python", script, folder=tmp_path / "alone", timeout=240)
    command = ["autoddp", "run", "-q", "--nproc", "2", "--log-dir", str(tmp_path / "logs"), script]
    ranks = warm.run(*command, folder=tmp_path / "ranks", timeout=240)
    assert (alone.code, ranks.code) == (0, 0), alone.err + ranks.err
    assert ranks.out == alone.out
    assert (tmp_path / "logs" / "rank1.log").read_text() == alone.out
    for name in ("batch.png", "log.csv"):
        assert (tmp_path / "ranks/run" / name).read_bytes() == (
            tmp_path / "alone/run" / name
        ).read_bytes()
