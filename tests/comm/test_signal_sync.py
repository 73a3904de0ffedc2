"""Signals wait for a point of the program that all ranks come to: real ranks, signals, no job."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
import torch

from autoddp.effects.signals import Signals
from tests.effects.outward import on_ranks, raised

pytestmark = pytest.mark.slow

KILL, PID = os.kill, os.getpid


def counted(run, steps, points, who):
    """At which step the handler ran, and how often; rank `who` gets a signal half-way."""
    seen = []
    signal.signal(signal.SIGUSR1, lambda *_: seen.append(at))
    for at in range(steps):
        time.sleep(0.002 * run.world.rank)
        if at == steps // 2 and who in (None, run.world.rank):
            KILL(PID(), signal.SIGUSR1)
        points(run.group)
    end = time.monotonic() + 20
    while not seen and time.monotonic() < end:
        time.sleep(0.01)
    return seen


POINTS = {
    "effects": lambda group: group.call("a", lambda: 1),
    "calls of all": lambda group: group.call("a", lambda: 1, all_here=True),
    "collectives": lambda group: group.all_reduce(torch.ones(2)),
    "both": lambda group: (group.call("a", lambda: 1), group.all_gather(torch.ones(2))),
}


@pytest.mark.parametrize("who", [0, 1, 2, None])
@pytest.mark.parametrize("points", POINTS.values(), ids=POINTS)
def test_one_handler_runs_once_at_one_step(points, who):
    zero, one, two = on_ranks(lambda run: counted(run, 60, points, who), 3, Signals)
    assert zero == one == two
    assert len(zero) == 1


@pytest.mark.parametrize("then", ["goes on", "sleeps"])
@pytest.mark.parametrize("who", [0, 2])
def test_ranks_that_do_not_wait_for_their_collectives_act_behind_the_same_one(who, then):
    def script(run):
        seen, end = [], time.monotonic() + 30
        signal.signal(signal.SIGUSR1, lambda *_: seen.append(at))
        for at in range(100_000):
            time.sleep(0.001 * (1 + run.world.rank))  # so rank 0 is far ahead
            with run.group.together("a collective", torch.empty(0)):
                pass
            if at == 50 and run.world.rank == who:
                KILL(PID(), signal.SIGUSR1)
            if seen or time.monotonic() > end or (then == "sleeps" and at == 200):
                break
        while not seen and time.monotonic() < end:
            time.sleep(0.01)
        return seen

    zero, one, two = on_ranks(script, 3, Signals)
    assert zero == one == two
    assert len(zero) == 1
    assert (zero[0] == 200) == (then == "sleeps")


@pytest.mark.parametrize("how", ["setitimer", "alarm", "handler"])
def test_what_a_timer_has_sent_is_acted_on_before_the_script_stops_it(how):
    def stop():
        if how == "handler":
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
        elif how == "alarm":
            signal.alarm(0)
        else:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def script(run):
        def late(number, frame):
            raise TimeoutError

        signal.signal(signal.SIGALRM, late)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        time.sleep(0.3 + 0.1 * run.world.rank)
        found = [raised(stop)[0] for _ in range(2)]
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        return found, run.group.all_reduce(torch.ones(1)).item()

    assert on_ranks(script, 3, Signals) == [(["TimeoutError", ""], 3.0)] * 3


def test_what_a_handler_raises_leaves_effects_in_step():
    """Wherever in a call of rank 0 it comes: before its act, in it, and after it."""

    def script(run):
        def stop(number, frame):
            run.group.call("saved", lambda: 1, all_here=True)
            raise TimeoutError(run.group.call("when", time.monotonic))

        def interrupted(seconds):
            signal.setitimer(signal.ITIMER_REAL, seconds)
            steps = 0
            try:
                while True:
                    run.group.call("a", lambda: "x")
                    steps += 1
            except TimeoutError as error:
                return steps, str(error), run.group.call("after", lambda: 2)

        signal.signal(signal.SIGALRM, stop)
        return [interrupted(0.005 + 1e-5 * number) for number in range(200)]

    zero, one = on_ranks(script, 2, Signals)
    assert zero == one


@pytest.mark.parametrize("inside", [False, True])
def test_without_a_point_all_run_it_where_they_wait(inside):
    """In a long call of every rank's, or while all wait for what rank 0 does."""

    def script(run):
        seen = []

        def stop(number, frame):
            seen.append(run.group.call("in the handler", lambda: 5))
            raise KeyboardInterrupt

        signal.signal(signal.SIGUSR1, stop)
        if run.world.rank == 0:
            threading.Timer(0.2, lambda: KILL(PID(), signal.SIGUSR1)).start()
        began = time.monotonic()
        try:
            if inside:
                run.group.call("long", lambda: time.sleep(60))
            else:
                time.sleep(60)
        except KeyboardInterrupt:
            seen.append("caught")
        return seen, time.monotonic() - began < 30, run.group.call("after", lambda: 2)

    assert on_ranks(script, 2, Signals) == [([5, "caught"], True, 2)] * 2


def test_the_script_finds_its_own_handlers_and_they_are_the_processes_after_it():
    def script(run):
        def mine(*_):
            pass

        before = signal.signal(signal.SIGUSR1, mine)
        found = signal.getsignal(signal.SIGUSR1) is mine
        again = signal.signal(signal.SIGUSR1, signal.SIG_IGN) is mine
        last = signal.getsignal(signal.SIGUSR1)
        interrupt = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        signal.signal(signal.SIGUSR2, mine)
        return before, found, again, last, interrupt

    expected = (signal.SIG_DFL, True, True, signal.SIG_IGN, True)
    assert on_ranks(script, 2, Signals) == [expected] * 2


@pytest.mark.parametrize("late", [0, 1])
def test_what_the_script_sends_to_itself_comes_once_where_it_is_sent_however_late_a_rank_is(late):
    def script(run):
        seen = []
        signal.signal(signal.SIGUSR1, lambda *_: seen.append(where))
        where = "before"
        if run.world.rank == late:
            # longer than rank 0 waits until it asks, and than a signal is on its way
            time.sleep(2.5)
        where = "there"
        signal.raise_signal(signal.SIGUSR1)
        where = "then"
        os.kill(os.getpid(), signal.SIGUSR1)
        where = "after"
        for _ in range(3):
            run.group.call("a", lambda: 1)
        time.sleep(0.1)
        return seen

    assert on_ranks(script, 2, Signals) == [["there", "then"]] * 2
