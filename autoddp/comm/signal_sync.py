"""Points of the program that every rank comes to, where all ranks act on a signal together.

Every effect of rank 0 and every collective is a point, and all ranks count them alike. Rank 0
decides. With a signal pending, it orders, before it begins a point at which ranks wait for it, that
the script's handler runs at that point's end. No rank can be past it: none ends such a point before
rank 0 begins it. While the others wait for what rank 0 does, they are ordered to act at once. Both
orders travel with the calls, in their order.

Where no such point comes (a long sleep; accelerators wait, and threads do not), rank 0 asks all
ranks how many points they have passed, and they wait for its word: the handlers run at the end of
the next point that no rank has passed; or here, if none has passed any since the signal. A rank
inside a point does not answer, and rank 0 asks again later.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import wait
from time import monotonic  # a script's is patched
from typing import Any

from autoddp.comm.context import Context
from autoddp.comm.line import Lines
from autoddp.errors import RankEnded

NEWS = signal.SIGURG  # says that an order has come; ignored by default, so never deadly
TIMERS = {  # each rank's own go off as rank 0's do
    signal.SIGALRM: signal.ITIMER_REAL,
    signal.SIGVTALRM: signal.ITIMER_VIRTUAL,
    signal.SIGPROF: signal.ITIMER_PROF,
}
ORDER, AT_ONCE = b"s", b"n"  # the first byte of a message to all: at a point, or in this call
# seconds until rank 0 asks: twice what points are apart, within these
PATIENCE, LONGEST = 1.0, 10.0
ANSWER = 2.0  # seconds in which all ranks must have answered
STALE = 1.0  # seconds in which one signal reaches all ranks that get it by themselves
RETURNED = 128  # plus a signal's number: a rank tells that the script's handler has returned
NOW = 0  # the point of an order to act at once


class Quiet:
    """A stretch of the script's thread in which this rank speaks or listens: orders wait."""

    __slots__ = ("_sync",)

    def __init__(self, sync: SignalSync) -> None:
        self._sync = sync if sync._context.on_script_thread() else None

    def __enter__(self) -> None:
        if self._sync is not None:
            self._sync._inside += 1

    def __exit__(self, *_: object) -> None:
        if self._sync is not None:
            self._sync._inside -= 1


class SignalSync:
    """One rank's count of the points, and its lines for orders and for questions."""

    def __init__(self, rank: int, lines: Lines, calls: Lines, context: Context) -> None:
        self.rank, self._lines, self._calls, self._context = rank, lines, calls, context
        self.act: Callable[[int], None] | None = None  # runs the script's handler; None: at once
        self._passed = 0
        self._inside = 0  # above 0 where questions must wait
        self._acting = False  # rank 0 does what the others wait for
        self._missed = True  # what came before the kernel tells of it
        self._pending: list[int] = []  # rank 0 has not given the order yet
        self._due: list[tuple[int, int]] = []  # the point at whose end a signal is acted on
        self._question: int | None = None  # the number of rank 0's, and that of its last one
        self._questions = 0
        self._passed_then = 0  # points, when rank 0 began to wait for one
        self._last_from: dict[int, tuple[int, float]] = {}  # which rank told of a signal, and when
        self._owed: Counter[int] = Counter()  # timers acted on before they have gone off here
        self._deadline = self._last = self._apart = 0.0
        self._reminding = False

    # ---- the program's points

    def here(self) -> bool:
        """Return whether all ranks come to this place, on the thread that runs the script."""
        return self.act is not None and self._context.on_script_thread()

    def enter(self) -> None:
        """Begin a point at which others wait for rank 0, which gives its orders first."""
        if self._pending and self.act is not None:
            self._order(self._passed + 1)

    def leave(self) -> None:
        """End a point, and act on what is due."""
        if self.act is None:
            return
        self._passed += 1
        if self.rank:
            while self._calls and self._calls[0].next_is(ORDER):
                self._note(*json.loads(self._calls[0].read()[1:]))
        else:
            now = monotonic()
            self._apart = max(0.9 * self._apart, now - self._last) if self._last else 0.0
            self._last = now
        if self._due:
            self._run_due()
        if self._missed:
            self.news()

    def quiet(self) -> Quiet:
        """Hold questions back while this rank speaks or listens."""
        return Quiet(self)

    def acting(self, act: Callable[[], Any]) -> Any:
        """Return what `act` does, while others wait for it."""
        before, self._acting = self._acting, True
        try:
            return act()
        finally:
            self._acting = before

    def obey(self, order: bytes) -> BaseException | None:
        """Take an order that comes in a call; return what a handler has raised.

        The call goes on: its outcome is still to come.
        """
        self._note(*json.loads(order))
        try:
            self._run_due()
        except BaseException as error:
            return error
        return None

    def _order(self, point: int) -> None:
        """Order all ranks, with the calls, to act on what is pending at a point's end, or now."""
        signals, self._pending = self._pending, []
        with self.quiet():
            kind = AT_ONCE if point == NOW else ORDER  # which a rank heeds that is here, too
            self._calls.say(kind + json.dumps([point, signals]).encode())
            for line in self._calls.values():
                line.settle(ANSWER)
        self._note(point, signals)

    def _note(self, point: int, signals: list[int]) -> None:
        if point == NOW:
            self._due, due = [], self._due
            self._due = [(self._passed, number) for _, number in due]
        self._due += [(point or self._passed, number) for number in signals]

    def _run_due(self) -> None:
        while self._due and self._due[0][0] <= self._passed and self.act is not None:
            _, number = self._due.pop(0)
            if self.rank:
                self._last_from[number] = 0, monotonic()
                self._owed[number] += number in TIMERS
            before = self._inside, self._acting
            self._inside, self._acting = 0, False
            try:
                self.act(number)
            finally:
                self._inside, self._acting = before

    # ---- signals

    def received(self, number: int) -> None:
        """Take a signal that the script handles: on rank 0 decide, on others tell rank 0."""
        assert self.act is not None
        if not self._context.is_rank():
            self.act(number)  # a child of the rank
        elif self.rank and number in TIMERS:
            self._owed[number] -= 1  # rank 0's decides
        elif self.rank and self._lines:
            self._tell("had", number)
        else:
            self._decide(number, self.rank)

    def spent(self, number: int) -> bool:
        """Return whether this rank acted by order on a timer whose signal is still to come."""
        return self._owed[number] > 0

    def _decide(self, number: int, told_by: int) -> None:
        """Decide about a signal, on rank 0 or where the others have ended; `told_by` had it."""
        now = monotonic()
        last_from, when = self._last_from.get(number, (told_by, now))
        if last_from != told_by and now - when < STALE:  # it is one signal, which several had
            if told_by == self.rank:
                self._last_from[number] = told_by, when
            return
        self._last_from[number] = told_by, now
        if not self._lines:
            self._due.insert(0, (0, number))
            self._run_due()
            return
        self._pending.append(number)
        self._await_point()
        if self._acting and not self._inside:
            self._order(NOW)
            self._run_due()
        if not self._reminding:
            self._reminding = True
            threading.Thread(target=self._remind, name="autoddp", daemon=True).start()

    def _await_point(self) -> None:
        self._passed_then = self._passed
        self._deadline = monotonic() + min(LONGEST, max(PATIENCE, 2 * self._apart))

    def _remind(self) -> None:
        while self._reminding or self._open():  # one may come just as this thread finds none
            time.sleep(max(0.2, self._deadline - monotonic()))
            if not self._open():
                self._reminding = False  # the next one starts another thread
            elif self.act is not None:
                signal.pthread_kill(self._context.thread, NEWS)

    def _open(self) -> bool:
        return bool(self._pending or self._due)

    # ---- questions

    def news(self, *_: object) -> None:
        """Take a question, or word of a signal, or ask if it is time to."""
        self._missed = True
        if self.act is None or self._inside or not self._context.is_rank():
            return
        self._missed = False
        self._take()
        if self.rank:
            self._answer()
        elif self._acting and self._open():
            self._order(NOW)
            self._run_due()
        elif self._open() and (not self._lines or monotonic() >= self._deadline):
            self._ask()

    def _ask(self) -> None:
        """Ask, on rank 0, how far all ranks are, and order at which point they act."""
        self._questions += 1
        passed, deadline = {0: self._passed}, monotonic() + ANSWER
        with self.quiet():
            self._tell("ask", self._questions)
            while len(passed) <= len(self._lines) and monotonic() < deadline:
                wait([line.socket for line in self._lines.values()], 0.05)
                for rank, (what, *content) in self._take():
                    if what == "here" and content[0] == self._questions:
                        passed[rank] = content[1]
            point, signals = max(passed.values()) + 1, list[int]()
            if len(passed) > len(self._lines):
                signals, self._pending = self._pending, []
                if set(passed.values()) == {self._passed_then}:
                    point = NOW
            self._tell("go", point, signals)
        self._await_point()
        self._note(point, signals)
        self._run_due()

    def _answer(self) -> None:
        """Tell rank 0, if it asked, how many points this rank has passed, and wait for its word."""
        if self._question is None:
            return
        self._tell("here", self._question, self._passed)
        with self.quiet():
            while self._question is not None and self._lines:
                wait([line.socket for line in self._lines.values()], ANSWER)
                self._take()
        self._run_due()

    def _take(self) -> list[tuple[int, list[Any]]]:
        """Return the messages that have come, by rank; act on those that need no answer."""
        came: list[tuple[int, list[Any]]] = []
        for rank, line in list(self._lines.items()):
            try:
                came += [(rank, json.loads(message)) for message in line.arrived()]
            except RankEnded:
                self._lines.pop(rank, None)  # the garbage collector may have looked meanwhile
                self._question = None
        for rank, (what, *content) in came:
            if what == "had":
                self._decide(content[0], rank)
            elif what == "ask":
                self._question = content[0]
            elif what == "go":
                self._question = None
                self._note(*content)
        return came

    def _tell(self, *what: Any) -> None:
        self._lines.say(json.dumps(what).encode())
