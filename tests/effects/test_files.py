# ruff: noqa: SIM115 - scripts leave files open, and that is what is tested
import importlib.util
import io
import json
import os
import stat
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from autoddp.effects.files import Files
from tests.effects.outward import on_ranks, raised


@pytest.fixture
def on(tmp_path):
    """`on(script)`: what it returns on 2 ranks, run in tmp_path."""
    return lambda script, nproc=2, **kw: on_ranks(script, nproc, Files, folder=tmp_path, **kw)


@pytest.mark.parametrize("nproc", [2, 3])
def test_a_checkpoint_is_rank_0s_and_read_by_all_after_the_save(on, tmp_path, nproc):
    def script(run):
        seen = []
        for step in range(5):
            torch.save({"rank": run.world.rank, "step": step}, "last.pt")
            seen.append(torch.load("last.pt"))
        return seen

    assert on(script, nproc) == [[{"rank": 0, "step": s} for s in range(5)]] * nproc
    assert os.listdir(tmp_path) == ["last.pt"]


def test_a_checkpoint_has_the_bytes_of_a_plain_one(on, tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    on(lambda run: torch.save(model.state_dict(), "model.pt"))
    (tmp_path / "plain").mkdir()
    torch.save(model.state_dict(), tmp_path / "plain" / "model.pt")
    assert (tmp_path / "model.pt").read_bytes() == (tmp_path / "plain" / "model.pt").read_bytes()


def test_the_mode_of_a_checkpoint_is_that_of_a_plain_write(on, tmp_path):
    (tmp_path / "old.pt").write_text("old")
    (tmp_path / "old.pt").chmod(0o640)

    def script(run):
        os.umask(0o027)
        torch.save(1, "new.pt")
        torch.save(1, "old.pt")

    on(script)
    modes = {n: stat.S_IMODE((tmp_path / n).stat().st_mode) for n in ("new.pt", "old.pt")}
    assert modes == {"new.pt": 0o640, "old.pt": 0o640}


@pytest.mark.parametrize("how", ["by its name", "found anew", "by its path"])
def test_a_module_that_was_just_written_is_imported_whole(on, tmp_path, how):
    def script(run):
        sys.path.insert(0, os.getcwd())
        time.sleep(0.0 if run.world.rank else 0.3)
        open("just_written.py", "w").write("x = 7\n")
        if how == "by its path":
            spec = importlib.util.spec_from_file_location("just_written", "just_written.py")
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module.x
        if how == "by its name":
            return importlib.import_module("just_written").x
        importlib.invalidate_caches()
        import just_written

        return just_written.x

    assert on(script, 3) == [7] * 3


def test_a_link_is_followed(on, tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "last.pt").symlink_to("runs/1.pt")
    on(lambda run: torch.save(7, "last.pt"))
    assert (tmp_path / "last.pt").is_symlink()
    assert torch.load(tmp_path / "runs" / "1.pt") == 7


class Unpicklable:
    def __reduce__(self):
        raise ValueError("not this one")


@pytest.mark.parametrize(
    ("value", "path"),
    [(1, "nowhere/x.pt"), (1, "folder"), (Unpicklable(), "old.pt"), (lambda: 0, "old.pt")],
    ids=["no folder", "is a folder", "raises", "unpicklable"],
)
def test_a_failed_save_raises_on_all_ranks_and_leaves_the_old_file(on, tmp_path, value, path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "old.pt").write_text("old")
    os.chdir(tmp_path)
    kind, text = raised(lambda: torch.save(value, "new.pt" if path == "old.pt" else path))
    for file in tmp_path.glob("new*"):
        file.unlink()
    assert on(lambda run: raised(lambda: torch.save(value, path))) == [(kind, text)] * 2
    assert (tmp_path / "old.pt").read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == ["folder", "old.pt"]


def test_a_failure_in_the_midst_of_writing_raises_on_all_ranks_with_the_users_path(on, tmp_path):
    (tmp_path / "old.npy").write_text("old")

    def script(run):
        import resource
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        if run.world.rank == 0:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

        def written_at_close():
            with open("x.bin", "wb") as file:
                file.write(bytes(5000))

        return raised(lambda: np.save("old.npy", np.zeros(10_000))), raised(written_at_close)

    zero, one = on(script)
    assert zero == one
    assert [kind for kind, _ in zero] == ["OSError", "OSError"]
    assert (tmp_path / "old.npy").read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == ["old.npy", "x.bin"]


def test_a_save_to_memory_or_to_an_open_file_is_plain(on, tmp_path):
    def script(run):
        buffer = io.BytesIO()
        torch.save(run.world.rank, buffer)
        with open("file.pt", "wb") as file:
            torch.save(run.world.rank, file)
        buffer.seek(0)
        return torch.load(buffer), torch.load("file.pt")

    assert on(script) == [(0, 0), (1, 0)]


def test_arrays_and_figures_are_written_once(on, tmp_path):
    def script(run):
        import matplotlib as mpl

        mpl.use("agg")
        from matplotlib import pyplot
        from torchvision.utils import save_image

        rank = run.world.rank
        np.save("a", np.array([rank]))
        np.savez("b.npz", x=np.array([rank]), y=np.zeros(2))
        np.savetxt("c.csv", np.array([rank]))
        save_image(torch.zeros(3, 8, 8), "d.png")
        pyplot.plot([rank])
        pyplot.savefig("e.png")
        return int(np.load("a.npy")[0]), int(np.load("b.npz")["x"][0]), float(np.loadtxt("c.csv"))

    assert on(script) == [(0, 0, 0.0)] * 2
    assert sorted(os.listdir(tmp_path)) == ["a.npy", "b.npz", "c.csv", "d.png", "e.png"]


def test_a_log_is_written_once_and_each_rank_reads_it(on, tmp_path):
    (tmp_path / "old.csv").write_text("epoch,loss\n")

    def script(run):
        seen = []
        log = open("old.csv", "a")
        for epoch in range(3):
            log.write(f"{epoch},0\n")
            log.flush()
            seen.append(Path("old.csv").read_text())
        log.close()
        return seen, Path("old.csv").read_text(), log.name

    whole = "epoch,loss\n0,0\n1,0\n2,0\n"
    seen = [whole[: 11 + 4 * (n + 1)] for n in range(3)]
    assert on(script) == [(seen, whole, "old.csv")] * 2
    assert (tmp_path / "old.csv").read_text() == whole


def test_modes_of_open_and_their_errors_are_those_of_one_process(on, tmp_path):
    (tmp_path / "there").write_text("abc")

    def script(run):
        with open("there", "r+") as file:
            file.write("X")
        after = Path("there").read_text()
        errors = [
            raised(lambda: open("there", "x")),
            raised(lambda: open("nowhere/x", "w")),
            raised(lambda: open("absent", "r+")),
            raised(lambda: open("there", "wz")),
            raised(lambda: open("absent")),
        ]
        with open("new", "x") as file:
            json.dump([1], file)
        Path("text").write_text("é", encoding="utf-8")
        with open("text", "w+b") as file:
            file.write(b"12")
            file.seek(0)
            back = file.read()
        return after, errors, json.loads(Path("new").read_text()), back

    zero, one = on(script)
    assert zero == one
    assert zero[0] == "Xbc"
    assert zero[1][0] == ("FileExistsError", "[Errno 17] File exists: 'there'")
    assert [kind for kind, _ in zero[1]][1:] == [
        "FileNotFoundError",
        "FileNotFoundError",
        "ValueError",
        "FileNotFoundError",
    ]
    assert zero[2:] == ([1], b"12")


def test_what_is_read_before_it_is_overwritten_is_the_old_on_every_rank(on, tmp_path):
    (tmp_path / "history").write_text("0")

    def script(run):
        import time

        for _ in range(4):
            time.sleep(0.05 * run.world.rank)  # the others are late
            now = int(Path("history").read_text())
            torch.save(now, "history.pt")
            Path("history").write_text(str(now + 1))
        return Path("history").read_text(), torch.load("history.pt")

    assert on(script, 3) == [("4", 3)] * 3


def test_a_closed_file_is_complete_for_readers_that_do_not_know_us(on, tmp_path):
    def script(run):
        import subprocess

        with open("big", "w") as file:
            for n in range(2000):
                file.write(f"{n}\n")
        return subprocess.run(["wc", "-l", "big"], capture_output=True, text=True).stdout

    assert on(script) == ["2000 big\n"] * 2


def test_a_file_dropped_without_closing_is_read_back(on, tmp_path):
    def script(run):
        json.dump([1, 2], open("x.json", "w"))
        return json.load(open("x.json"))

    assert on(script) == [[1, 2]] * 2


def test_worker_processes_and_the_fetch_of_a_data_set_are_left_alone(on, tmp_path):
    class Cached(torch.utils.data.Dataset):
        def __init__(self, rank):
            self.rank = rank

        def __len__(self):
            return 4

        def __getitem__(self, at):
            Path(f"{self.rank}-{at}").write_text("x")
            return at

    def script(run):
        rank = run.world.rank
        for workers in (0, 1):
            list(torch.utils.data.DataLoader(Cached(f"{rank}{workers}"), num_workers=workers))

    on(script)
    assert len(os.listdir(tmp_path)) == 16


def test_what_a_library_writes_is_rank_0s_alone(on, tmp_path):
    library = tmp_path / "site-packages" / "lib.py"
    library.parent.mkdir()
    library.write_text(
        "def cache(name):\n    with open(name, 'w') as file:\n        file.write('x')\n"
    )

    def script(run):
        space = {}
        exec(compile(library.read_text(), str(library), "exec"), space)
        space["cache"](f"cache{run.world.rank}")

    on(script)
    assert "cache0" in os.listdir(tmp_path)
    assert "cache1" not in os.listdir(tmp_path), "a rank above 0 has changed the outside world"


def test_in_the_local_view_rank_0_writes_and_nobody_waits(on, tmp_path):
    def script(run):
        rank = run.world.rank
        torch.save(rank, "all.pt")
        Path("log").write_text(str(rank))
        if rank == 0:
            torch.save(rank, "mine.pt")
        return Path("log").read_text()

    assert on(script, view="local") == ["0", "1"]
    assert torch.load(tmp_path / "all.pt") == 0
    assert (tmp_path / "log").read_text() == "0"


def test_ranks_at_different_places_are_told_so(on):
    def script(run):
        if run.world.rank == 0:
            return raised(lambda: run.group.call("here", lambda: 1))
        return raised(lambda: Path("x").write_text("a"))

    _, one = on(script)
    assert one[0] == "Disagreement"
    assert "test_files.py" in one[1]
    assert "«here»" in one[1]
