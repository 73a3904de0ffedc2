"""Call each row of the tables on two ranks: rank 0 makes the call for both."""

import fcntl
import getpass
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import uuid

import pytest

from autoddp.effects.effect_feature import EffectFeature, Handling
from autoddp.process.features import FEATURES
from tests.effects.outward import on_ranks, raised

OUTWARD = [feature for feature in FEATURES if issubclass(feature, EffectFeature)]
ROWS = [(feature, row) for feature in OUTWARD for row in feature.rows]


def lock():
    """Try to lock a file that rank 0 cannot lock."""
    with open(f"lock{os.environ['ME']}", "w") as file:
        return raised(lambda: fcntl.flock(file if os.environ["ME"] == "1" else -1, fcntl.LOCK_EX))


def still_works():
    """A worker that has ended on rank 0 only."""
    work = multiprocessing.get_context("fork").Process(
        target=time.sleep, args=(60 * (os.environ["ME"] == "1"),)
    )
    work.start()
    if os.environ["ME"] == "0":
        os.waitid(os.P_PID, work.pid, os.WEXITED | os.WNOWAIT)
    try:
        return work.is_alive()
    finally:
        work.kill()


def timer():
    """Set a timer that never expires, different on each rank."""
    signal.setitimer(signal.ITIMER_REAL, 1000 * (1 + int(os.environ["ME"])))
    return round(signal.getitimer(signal.ITIMER_REAL)[0] / 1000)


# By the first target of a row: a call of the script's. Alone, each rank would get another answer,
# see `begin`.
CALLS = {
    "builtins:input": lambda: input(),
    "getpass:getuser": lambda: (getpass.getuser(), str(uuid.uuid1())),
    "fcntl:flock": lock,
    "multiprocessing.process:BaseProcess.is_alive": still_works,
    "time:clock_gettime": lambda: time.clock_gettime(time.CLOCK_MONOTONIC),
    "signal:setitimer": timer,
    "tempfile:_RandomNameSequence.__next__": lambda: next(tempfile._get_candidate_names()),
}
# tested with their feature
EACH = {row.targets[0] for _, row in ROWS if row.handling is Handling.EACH}


def begin(rank):
    """Make the ranks differ: rank 0 has a terminal, another user name, and other input."""
    os.environ |= {"ME": str(rank), "LOGNAME": f"user{rank}"}
    read, write = os.pipe() if rank else os.openpty()[::-1]
    os.write(write, f"rank {rank}\n".encode())
    os.dup2(read, 0)
    sys.stdin = os.fdopen(0)


def test_every_row_has_a_call():
    assert {row.targets[0] for _, row in ROWS} - EACH == {*CALLS}


@pytest.mark.parametrize(
    ("feature", "target"),
    [(feature, row.targets[0]) for feature, row in ROWS if row.handling is not Handling.EACH],
    ids=[row.targets[0] for _, row in ROWS if row.handling is not Handling.EACH],
)
def test_a_row_returns_rank_0s_result_on_all_ranks(feature, target, tmp_path):
    def script(run):
        run.group.barrier()
        return CALLS[target]()

    zero, one = on_ranks(script, 2, feature, folder=tmp_path, before=begin)
    assert zero == one
    zero, one = on_ranks(script, 2, folder=tmp_path, before=begin)
    assert zero != one, "without the row"
