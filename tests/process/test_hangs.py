"""Ranks that part: an error naming both places, or a report of who waits for whom, and an end."""

from __future__ import annotations

import re
import textwrap

import pytest

pytestmark = pytest.mark.slow

TRAIN = """
import ctypes
import os
import posix
import signal
import subprocess
import sys
import threading
import time

import torch
from torch.utils.data import DataLoader, TensorDataset

import autoddp

torch.manual_seed(0)
x = torch.randn(40, 3)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
this = autoddp.rank()


def train(step, a, b):
    loss = torch.nn.functional.mse_loss(model(a), b)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


for step, (a, b) in enumerate(loader):
    loss = train(step, a, b)
"""
MARK = "#MARK"


@pytest.fixture
def job(warm, tmp_path):
    """What becomes of `body` in the loop, on 2 ranks, and the places of lines that hold #MARK."""

    def run(body, *options, timeout=2, **settings):
        text = (
            TRAIN
            + textwrap.indent(textwrap.dedent(body).strip("\n"), "    ")
            + '\nprint("through")\n'
        )
        path = tmp_path / "job.py"
        path.write_text(text)
        marks = [f"job.py:{n}" for n, line in enumerate(text.splitlines(), 1) if MARK in line]
        done = warm.run(
            *("autoddp", "run", "-n", "2", "--hang-timeout", str(timeout), *options, str(path)),
            folder=tmp_path / "run",
            **settings,
        )
        assert not done.left
        return done, marks

    return run


def ours(done):
    return [line for line in done.err.splitlines() if line.startswith("[autoddp]")]


# ---- at once


def test_two_sums_that_do_not_belong_together_are_never_used(job):
    done, (first, second) = job(
        """
        if step == 5 and this == 0:
            print(loss.item())  #MARK
        if step == 5:
            other = b.sum().item()  #MARK
        """
    )
    assert done.code == 1
    assert f"at {second}» where rank 0 is in" in done.err
    assert f"at {first}»" in done.err
    assert done.out == ""


def test_a_rank_that_leaves_the_loop_early(job):
    done, (_, gone) = job(
        """
        if step == 5 and this == 1:
            break  #MARK
        loss.item()  #MARK
        """,
        "-q",
        timeout=30,
    )
    assert done.code == 1
    assert (
        "rank 1 has ended, or its node is out of reach, and this rank waits for it in "
        "«all-reduce of" in done.err
    )
    assert f"at {gone}»" in done.err


# ---- after a while


def test_a_rank_that_sleeps_is_named_with_its_stack(job):
    done, (sleeps, waits) = job(
        """
        if step == 4 and this == 1:
            time.sleep(1000)  #MARK
        loss.item()  #MARK
        """
    )
    assert done.code == 1
    first, zero, one = ours(done)[-3:]
    assert "the job hangs: for 2 s no rank has got anywhere (missing: rank 1)" in first
    assert "rank 0 (" in zero
    # at least 2 s: a busy machine reports later
    assert re.search(
        r"has waited for ([2-9]|\d\d+) s in «all-reduce of float64\[1\] at " + waits, zero
    )
    assert f"is at {sleeps}, idle for" in one
    assert f"{sleeps}, in <module>" in done.err


def test_each_waits_for_the_other(job):
    done, (asks,) = job(
        """
        if step == 4:
            if this == 0:
                loss.item()
            else:
                os.path.exists("there")  #MARK
        """
    )
    assert done.code == 1
    assert "each waits for another" in done.err
    assert f"posix.stat at {asks}»" in done.err


def test_a_rank_that_is_stopped_does_not_answer(job):
    done, _ = job("if step == 4 and this == 1: signal.raise_signal(19)")
    assert done.code == 1
    assert ", it does not answer) " in done.err  # what it did when it said so last is chance


def test_zero_waits_for_ever(job):
    done, _ = job("if step == 4 and this == 1: time.sleep(4)", timeout=0)
    assert (done.code, done.out) == (0, "through\n")
    assert "hangs" not in done.err


def test_the_script_does_not_see_the_thread_that_watches(job):
    done, _ = job("if step == 4: print(threading.active_count())", timeout=30)
    assert (done.code, done.out) == (0, "1\nthrough\n")


# ---- slow is not stuck


def test_a_rank_that_computes_is_waited_for(job):
    done, _ = job(
        """
        if step == 4 and this == 0:
            for _ in range(400):
                sum(range(10**6))  # a slow machine's other threads wait for the end of each
        """,
        timeout=2,
    )
    assert (done.code, done.out) == (0, "through\n")


def test_a_program_that_rank_0_runs_for_all_may_take_its_time(job):
    done, _ = job(
        """
        if step == 4:
            subprocess.run(["sleep", "6"])
        """,
        timeout=2,
    )
    assert (done.code, done.out) == (0, "through\n")
