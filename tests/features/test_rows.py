"""Each row of the outside world, called for real on two ranks: rank 0 answers for both, or acts."""

import fcntl
import getpass
import os
import signal
import subprocess
import sys
import threading
import time
import uuid

import pytest

from autoddp.effects.engine import Outward
from autoddp.process.features import FEATURES
from tests.features.outward import on_ranks, raised, trial

OUTWARD = [feature for feature in FEATURES if issubclass(feature, Outward)]
ROWS = [(feature, row) for feature in OUTWARD for row in feature.rows]


def settings():
    """There is no terminal: rank 0's error says so, on all ranks."""
    import termios

    return raised(lambda: termios.tcgetattr(0))


def set_terminal():
    """Likewise."""
    import termios

    return raised(lambda: termios.tcflush(0, termios.TCIFLUSH))


def lock():
    """A file that cannot be locked on rank 0 is not locked anywhere."""
    with open(f"lock{os.environ['ME']}", "w") as file:
        return raised(lambda: fcntl.flock(file if os.environ["ME"] == "1" else -1, fcntl.LOCK_EX))


def send():
    """The signal comes once: from rank 0."""
    return os.kill(int(os.environ["OTHER"]), signal.SIGTERM)


CALLS = {  # by the first target of a row: a call of the script's
    "builtins:input": lambda: input(),
    "getpass:getuser": lambda: getpass.getuser(),
    "termios:tcgetattr": settings,
    "termios:tcsetattr": set_terminal,
    "fcntl:flock": lock,
    "os:kill": send,
    "os:getpgid": lambda: os.getpgid(0),
    "time:clock_gettime": lambda: time.clock_gettime(time.CLOCK_MONOTONIC),
    "os:times": lambda: (os.times().elapsed, type(os.times()).__name__),
    "uuid:uuid1": lambda: str(uuid.uuid1()),
}


def test_every_row_has_a_call():
    assert {row.targets[0] for _, row in ROWS} == set(CALLS)


@pytest.mark.parametrize(("feature", "row"), ROWS, ids=[row.targets[0] for _, row in ROWS])
def test_a_row_gives_all_ranks_what_rank_0_got(feature, row, tmp_path):
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])

    def script(run):
        os.environ |= {
            "ME": str(run.world.rank),
            "LOGNAME": f"user{run.world.rank}",
            "OTHER": str(other.pid),
        }
        return CALLS[row.targets[0]]()

    def typed(rank):
        if row.targets[0] == "builtins:input":
            read, write = os.pipe()
            os.write(write, f"rank {rank}\n".encode())
            os.dup2(read, 0)
            sys.stdin = os.fdopen(0)

    try:
        zero, one = on_ranks(script, 2, feature, folder=tmp_path, before=typed)
        assert zero == one
        if row.once:
            assert other.wait(20) == -signal.SIGTERM
    finally:
        other.kill()
        other.wait()


ONCE = [row.targets[0] for _, row in ROWS if row.once]


@pytest.mark.parametrize("target", ONCE)
def test_what_is_done_once_is_rank_0s_alone_on_a_thread_too_and_nobodys_in_a_trial(target):
    (feature,) = [feature for feature, row in ROWS if row.targets[0] == target]
    others = [subprocess.Popen(["sleep", "600"]) for _ in range(3)]

    def script(run):
        found = []
        with trial(run):
            os.kill(others[0].pid, signal.SIGTERM)
        mine = others[1 + run.world.rank].pid
        thread = threading.Thread(target=lambda: found.append(os.kill(mine, signal.SIGTERM)))
        thread.start()
        thread.join()
        return found

    try:
        assert on_ranks(script, 2, feature) == [[None]] * 2
        assert others[1].wait(20) == -signal.SIGTERM
        assert [others[0].poll(), others[2].poll()] == [None, None]
    finally:
        for other in others:
            other.kill()
            other.wait()
