"""A rank that is killed at any moment of `torch.save` leaves the old checkpoint or the new one."""

from __future__ import annotations

import os

import pytest
import torch

pytestmark = pytest.mark.slow

MOMENTS = int(os.environ.get("AUTODDP_MOMENTS", "3"))  # AUTODDP_MOMENTS=100 is the full measure

# Each start loads what the last one left, and is killed while it saves; the timer's signal ends a
# process in the kernel, as SIGKILL does, no matter which code it is in.
SCRIPT = """
import os
import signal
import sys
import time

import numpy as np
import torch

import autoddp

moments = int(sys.argv[1])
there = os.path.exists("last.pt")
state = torch.load("last.pt") if there else {"n": 0}
if there:
    assert state["x"].shape == (300_000,)
    assert (state["x"] == state["n"]).all(), "half a checkpoint"
with open("starts", "a") as starts:
    starts.write(f"{state['n']}\\n")
start = len(open("starts").readlines())
draw, n = np.random.default_rng(start), state["n"]
for _ in range(2):  # how long it takes, once all is loaded that it takes
    began = time.perf_counter()
    torch.save({"n": n, "x": torch.full((300_000,), n)}, "last.pt")
    took = 1.2 * (time.perf_counter() - began)
while start <= moments:  # until it hits
    n += 1
    state = {"n": n, "x": torch.full((300_000,), n)}
    if autoddp.rank() == 0:
        signal.setitimer(signal.ITIMER_REAL, draw.uniform(1e-4, took))
    torch.save(state, "last.pt")
    if autoddp.rank() == 0:
        signal.setitimer(signal.ITIMER_REAL, 0)
print("through")
"""


@pytest.mark.parametrize("nproc", [2])
def test_the_old_or_the_new_one(warm, tmp_path, nproc):
    script = tmp_path / "job.py"
    script.write_text(SCRIPT)
    command = [
        "autoddp",
        "run",
        "-n",
        str(nproc),
        "--max-restarts",
        str(MOMENTS),
        str(script),
        str(MOMENTS),
    ]
    done = warm.run(*command, folder=tmp_path / "ranks", timeout=240 + 5 * MOMENTS)
    assert (done.code, done.out) == (0, "through\n"), done.err
    assert not done.left
    assert done.err.count("restarting the job") == MOMENTS
    starts = [int(line) for line in (tmp_path / "ranks" / "starts").read_text().splitlines()]
    assert len(starts) == MOMENTS + 1
    assert starts == sorted(starts)
    last = torch.load(tmp_path / "ranks" / "last.pt")
    assert (last["x"] == last["n"]).all()
    assert sorted(os.listdir(tmp_path / "ranks")) == ["last.pt", "starts"]
    print(f"{MOMENTS} kills; after {len(set(starts)) - 1} a newer checkpoint was there")
