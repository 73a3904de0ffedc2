"""Saves of sharded models: what a rank holds meanwhile, and a rank that is killed in one."""

from __future__ import annotations

import ctypes
import os
import threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from benchmarks.memory import settle
from tests.support.training import TWO_OR_THREE, on_ranks

SIDE, COUNT = 1024, 24
ONE = 4 * SIDE * SIDE  # bytes of a parameter


def resident():
    """Bytes of this process, counted exactly: VmRSS and VmHWM are rounded on each core."""
    rows = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(row.split()[1]) << 10 for row in rows if row.startswith("Rss:"))


def peak_of(save, at):
    """Parameters' worth of memory that a save adds, sampled while it runs."""
    settle()
    before, most, over = resident(), [0], threading.Event()

    def watch():
        while not over.wait(0.001):
            most[0] = max(most[0], resident())

    thread = threading.Thread(target=watch)
    thread.start()
    save(at)
    over.set()
    thread.join()
    return (most[0] - before) / ONE


def peaks_of_saves():
    """What saves add to the memory of this rank, by the name of the file."""
    ctypes.CDLL(None).mallopt(-3, 100_000)  # M_MMAP_THRESHOLD, as in the ranks of a job
    torch.set_default_dtype(torch.float32)
    net = nn.Sequential(*(nn.Linear(SIDE, SIDE, bias=False) for _ in range(COUNT))).to("cpu")
    ways = {
        "state.pt": lambda at: torch.save({"net": net.state_dict()}, at),
        "whole.pt": lambda at: torch.save(net, at),
        "state.safetensors": lambda at: save_file(dict(net.state_dict()), at),
    }
    return {name: peak_of(save, os.path.abspath(name)) for name, save in ways.items()}


@TWO_OR_THREE
def test_ranks_above_0_hold_one_parameter_in_a_save(nproc, tmp_path, monkeypatch):
    """Of 24: it is gathered, and freed before the next one."""
    monkeypatch.chdir(tmp_path)
    # a fresh process: its ranks would take what earlier tests left free in the heap
    with ProcessPoolExecutor(1, get_context("spawn")) as fresh:
        run = fresh.submit(on_ranks, peaks_of_saves, nproc, parameters="sharded")
        first, *others = run.result()
    for name, peak in first.items():
        assert peak > COUNT - 2, (
            name,
            "rank 0 has the whole in host memory: this measures nothing",
        )
        assert all(other[name] < 2.5 for other in others), (name, others)
    kept = torch.load(tmp_path / "state.pt")["net"]
    again = load_file(tmp_path / "state.safetensors")
    assert len(kept) == COUNT
    assert all(torch.equal(x, again[name]) for name, x in kept.items())


KILLED = """
import os, signal, sys, torch
from torch import nn

rank = int(sys.argv[1])
model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))).to("cpu")
torch.save({"n": 0}, "last.pt")


class Deadly:
    def __reduce__(self):
        import autoddp
        if autoddp.rank() == rank:
            os.kill(os.getpid(), signal.SIGKILL)
        return dict, ()


state = model.state_dict()
torch.save({"first": state["0.weight"], "x": Deadly(), "rest": state}, "last.pt")
"""


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_killed_in_a_save_leaves_the_old_file(rank, warm, tmp_path):
    script = tmp_path / "s.py"
    script.write_text(KILLED)
    command = ("autoddp", "run", "--nproc", "2", "--parameters", "sharded", str(script), str(rank))
    done = warm.run(*command, folder=tmp_path / "ranks")
    assert done.code == 128 + 9, done.err
    assert torch.load(tmp_path / "ranks/last.pt") == {"n": 0}
    assert os.listdir(tmp_path / "ranks") == ["last.pt"]


APART = """
import sys, torch
from torch import nn
import autoddp

rank, way = autoddp.rank(), sys.argv[1]
model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(4))).to("cpu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.save({"n": 0}, "last.pt")
if way == "loaded":  # each from a file of its own
    model.load_state_dict({k: x + rank for k, x in torch.load("whole.pt").items()})
if way == "written" and rank:
    model[1].weight.data.mul_(2)
if way == "gradient":
    model[2].weight.grad = torch.full((32, 32), 1.0 + rank)
    optimizer.step()
torch.save(model.state_dict(), "last.pt")
"""
WAYS = {
    "loaded": "was written into parameters at s.py:11 is not the same on all ranks (rank 0 has",
    "written": "rank 1 is in «all-gather of shards, after 1 writes, of float32",
    "gradient": "was written into parameters at s.py:15 is not the same on all ranks (rank 0 has",
}


@pytest.mark.parametrize("way", WAYS)
def test_shards_that_are_not_of_one_whole_end_in_an_error_and_not_in_a_file(way, warm, tmp_path):
    script = tmp_path / "s.py"
    script.write_text(APART)
    folder = tmp_path / "ranks"
    folder.mkdir()
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Linear(32, 32) for _ in range(4)))
    torch.save(net.state_dict(), folder / "whole.pt")
    command = ("autoddp", "run", "--nproc", "2", "--parameters", "sharded", str(script), way)
    done = warm.run(*command, folder=folder)
    assert done.code == 1
    assert WAYS[way] in done.err, done.err
    assert torch.load(folder / "last.pt") == {"n": 0}
    assert sorted(os.listdir(folder)) == ["last.pt", "whole.pt"]
