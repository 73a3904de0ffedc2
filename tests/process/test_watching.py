"""When a job hangs, by what its ranks say of themselves; what one rank says of itself."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time

import pytest

from autoddp.comm.position import ACTING, BACKWARD, COLLECTIVE, EFFECT, Position
from autoddp.process.watching.judge import RankStatus, judge
from autoddp.process.watching.progress import ProgressProbe

T = 30.0


def at(rank, kind="", for_=0.0, idle=0.0, words="", heard=0.0):
    return RankStatus(rank, kind, words, for_, idle, "train.py:1", heard=heard)


@pytest.mark.parametrize(
    ("ranks", "missing"),
    [
        ([at(0), at(1)], None),
        ([at(0, idle=99), at(1, idle=99)], None),  # both sleep: nobody waits
        ([at(0, COLLECTIVE, 29, 29), at(1, idle=29)], None),
        ([at(0, COLLECTIVE, 31, 31), at(1, idle=31)], [1]),
        ([at(0, COLLECTIVE, 31, 31), at(1, idle=5)], None),
        ([at(0, COLLECTIVE, 31, 31), at(1, idle=99), at(2, idle=1)], None),
        ([at(0, COLLECTIVE, 31, 31), at(1, EFFECT, 31, 31, "3 x")], []),
        ([at(0, COLLECTIVE, 31, 31), at(1, EFFECT, 5, 5, "3 x")], None),
        ([at(0, ACTING, 99, 99, "3 x"), at(1, EFFECT, 99, 99, "3 x")], None),
        ([at(0, ACTING, 99, 99, "3 x"), at(1, EFFECT, 99, 99, "2 y")], [0]),
        (
            [
                at(r, (ACTING, EFFECT)[r % 2], 99, 99, f"batch of rank {r // 2 * 2}")
                for r in range(4)
            ],
            None,
        ),
        ([at(0, ACTING, 99, 99, "3 input"), at(1, COLLECTIVE, 99, 99)], [0]),
        ([at(0, BACKWARD, 99, 0), at(1, BACKWARD, 99, 0)], None),  # it computes
        ([at(0, BACKWARD, 99, 40), at(1, BACKWARD, 99, 1)], None),
        ([at(0, BACKWARD, 99, 40), at(1, BACKWARD, 99, 40)], []),
        ([at(0, COLLECTIVE, 31, 31), at(1, heard=31)], [1]),
        ([at(0), at(1, heard=31)], None),  # nobody waits for it
    ],
)
def test_a_job_hangs_if_ranks_wait_and_none_gets_anywhere(ranks, missing):
    found = judge(ranks, T)
    assert (found and [r.rank for r in found]) == missing


def test_a_position_is_the_innermost_and_is_left_by_an_exception():
    position = Position()
    with position.at(COLLECTIVE, "a"):
        with contextlib.suppress(ValueError), position.at(EFFECT, "b"):
            assert position.now[:2] == (EFFECT, "b")
            raise ValueError
        assert position.now[:2] == (COLLECTIVE, "a")
    assert position.now[:2] == ("", "")


class Other(threading.Thread):
    """Does something while this thread looks at it."""

    def __init__(self, act):
        super().__init__(daemon=True)
        self.act, self.over = act, threading.Event()
        self.start()

    def run(self):
        while not self.over.is_set():
            self.act(self)


def idle_while(act):
    other = Other(act)
    time.sleep(0.2)
    pulse = ProgressProbe(other.ident, other.native_id)
    for _ in range(3):
        time.sleep(0.3)
        found = pulse.idle()
    line, stack = pulse.line(), pulse.stack()
    other.over.set()
    other.join()
    return found, line, stack


def test_what_waits_is_idle_and_shows_its_line():
    found, line, stack = idle_while(lambda other: other.over.wait())
    assert found > 0.7
    assert line.startswith("test_watching.py:")
    assert stack[-1].startswith("inside ")


def test_what_computes_is_not():
    assert idle_while(lambda other: sum(range(1000)))[0] < 0.7


def test_what_waits_for_a_program_that_computes_is_not():
    code = "import time\nwhile True: sum(range(1000))"
    started = []

    def run(other):
        started.append(subprocess.Popen([sys.executable, "-c", code]))
        other.over.wait()

    found = idle_while(run)[0]
    for process in started:
        process.kill()
        process.wait()
    assert found < 0.7


def test_what_something_arrives_for_is_not():
    assert idle_while(lambda other: time.sleep(0.02))[0] < 0.7
