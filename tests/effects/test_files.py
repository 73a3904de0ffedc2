import importlib.util
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
    """`on(script)`: the results on 2 ranks, run in tmp_path."""
    return lambda script, nproc=2, **kw: on_ranks(script, nproc, Files, folder=tmp_path, **kw)


def test_a_module_that_was_just_written_can_be_imported(on, tmp_path):
    def script(run):
        sys.path.insert(0, os.getcwd())
        time.sleep(0.0 if run.world.rank else 0.3)
        Path("just_written.py").write_text("x = 7\n")
        return importlib.import_module("just_written").x

    assert on(script, 3) == [7] * 3


def test_a_checkpoint_keeps_its_mode_and_a_link_is_followed(on, tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/1.pt").touch(0o640)
    (tmp_path / "last.pt").symlink_to("runs/1.pt")

    def script(run):
        os.umask(0o027)
        torch.save(7, "last.pt")
        torch.save(1, "new.pt")
        with open("log", "a") as log:
            log.write("1\n")
            log.flush()
            during = Path("log").read_text()
        return torch.load("last.pt"), during, Path("log").read_text()

    assert on(script, 3) == [(7, "1\n", "1\n")] * 3
    assert (tmp_path / "last.pt").is_symlink()
    for name in ("runs/1.pt", "new.pt"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o640


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


def test_a_failure_while_writing_raises_on_all_ranks_with_the_users_path(on, tmp_path):
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


def test_worker_processes_and_fetches_are_not_synchronized(on, tmp_path):
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


def test_in_the_local_view_rank_0_writes_and_no_rank_waits(on, tmp_path):
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
