"""Points of the program that every rank comes to, where all ranks act on a signal together.

Every effect of rank 0 and every collective that waits is a point; all ranks count the same ones.
Rank 0 decides: with a signal pending, it orders, before it begins a point, that the script's
handler runs at that point's end. No rank can be past it: none ends a point before rank 0 begins it.

Where no point comes (a long sleep, a program that runs), one process would have reacted, too: rank
0 asks all ranks whether they are where it is, and they wait for its word. If all are, the handlers
run there; a rank inside a collective does not answer, and rank 0 asks again later.

Where accelerators wait, and threads do not, ranks may be steps apart between two points. Each tells
with its answer how many collectives it has begun: the handlers run at the end of the next one that
no rank has begun; or where all are, if none has begun any since rank 0 asked before.
"""

from __future__ import annotations

import json
import select
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from time import monotonic  # a script's is patched
from typing import Any

from autoddp.comm.context import Context
from autoddp.comm.line import Line
from autoddp.comm.quiet import Quiet
from autoddp.errors import RankEnded

NEWS = signal.SIGURG  # says that an order has come; ignored by default, so never deadly
TIMERS = {  # each rank's own go off as rank 0's do
    signal.SIGALRM: signal.ITIMER_REAL,
    signal.SIGVTALRM: signal.ITIMER_VIRTUAL,
    signal.SIGPROF: signal.ITIMER_PROF,
}
# seconds until rank 0 asks: twice what points are apart, within these
PATIENCE, LONGEST = 1.0, 10.0
ANSWER = 2.0  # seconds in which all ranks must have answered
STALE = 1.0  # seconds in which a rank may get by itself what it was ordered to act on
RETURNED = 128  # plus a signal's number: a rank tells that the script's handler has returned

Signal = tuple[int, int]  # its number, and the how-manieth of that number


class SignalSync:
    """One rank's count of the points, and its line for orders; on rank 0, the lines of all."""

    def __init__(self, rank: int, lines: dict[int, Line], context: Context) -> None:
        self.rank, self._lines, self._context = rank, lines, context
        self.passed = 0
        # collectives for which no thread waits; on rank 0, how many there were when it asked last
        self._begun, self._begun_before = 0, -1
        self._due_later: list[tuple[int, Signal]] = []  # by the number of such a collective
        self.act: Callable[[int], None] | None = None  # runs the script's handler; None: at once
        self._inside = 0  # above 0 where orders are looked for, or must not be
        self.acting = False  # rank 0 does what the others wait for
        self._missed = False
        self._pending: list[Signal] = []  # rank 0 has not given the order yet
        self._due: list[tuple[int, Signal]] = []  # the point at whose end it is acted on
        self._asked: tuple[int, int, bool] | None = None
        self._questions = 0
        self._kept: BaseException | None = None
        self._had: Counter[int] = Counter()
        self._known: dict[int, tuple[int, float]] = {}  # how many were acted on, and when the last
        self._deadline = self._last = self._apart = 0.0
        self._reminding = False

    # ---- the program's points

    def here(self) -> bool:
        """Return whether all ranks come to this place, on the thread that runs the script."""
        return self.act is not None and self._context.on_script_thread()

    def enter(self) -> None:
        """Begin a point: rank 0 gives its orders first."""
        if self.act is None or self.rank:
            return
        self._measure()
        if self._pending:
            signals, self._pending = self._pending, []
            self._due += [(self.passed + 1, one) for one in signals]
            self._tell("at", self.passed + 1, signals)

    def leave(self) -> None:
        """End a point, and act on what is due."""
        if self.act is None:
            return
        self.passed += 1
        if self.rank:
            self._take()
            self._answer(waiting=False)
        else:
            self._measure()
            if self._missed:  # it came while this rank waited for the others
                self._missed = False
                self._take()
        kept, self._kept = self._kept, None
        if kept is not None:
            raise kept
        if self._due:
            self._run_due()

    def begun(self) -> None:
        """Count a collective that this thread does not wait for; act on what is due at it."""
        self._begun += 1
        if self._due_later and self._due_later[0][0] <= self._begun:
            now = [one for at, one in self._due_later if at <= self._begun]
            self._due_later = self._due_later[len(now) :]
            self._due = [(self.passed, one) for one in now] + self._due
            self._run_due()

    def quiet(self) -> Quiet:
        """Hold orders back while this rank speaks or listens, unless it looks for one itself."""
        return Quiet(self)

    def drop(self) -> None:
        """Forget, on rank 0, the signals that came too late for what is over."""
        self._take()
        self._pending.clear()
        self._due_later.clear()

    def _measure(self) -> None:
        now = monotonic()
        if self._last:
            self._apart = max(0.9 * self._apart, now - self._last)
        self._last = now

    # ---- signals

    def received(self, number: int) -> None:
        """Take a signal that the script handles: on rank 0 decide, on others tell rank 0."""
        assert self.act is not None
        if not self._context.is_rank():
            self.act(number)  # a child of the rank
            return
        known, when = self._known.get(number, (0, 0.0))
        stale = monotonic() - when > STALE  # what it acted on by order will not come any more
        self._had[number] = 1 + max(self._had[number], known if stale else 0)
        follows = self.rank > 0 and number in TIMERS
        if not self._lines:
            if self._had[number] > known and not follows:  # the others, or rank 0, have ended
                self.act(number)
        elif self.rank == 0:
            self._decide(number, self._had[number])
        elif not follows:
            self._tell("had", number, self._had[number])

    def spent(self, number: int) -> bool:
        """Return whether this rank acted by order on a timer whose signal is still to come."""
        return (
            self.rank > 0
            and number in TIMERS
            and self._known.get(number, (0, 0.0))[0] > self._had[number]
        )

    def news(self, *_: object) -> None:
        """Take an order, a question, or word of a signal, or ask if it is time to."""
        self._missed = True
        if self.act is None or self._inside or not self._context.is_rank():
            return
        self._missed = False
        self._take()
        if self.rank:
            self._answer(waiting=False)
        elif self._open and (not self._lines or monotonic() >= self._deadline):
            self._ask()

    def news_while_waiting(self) -> None:
        """Take news where this rank waits for what rank 0 says of an effect."""
        self._take()
        self._answer(waiting=True)

    @property
    def _open(self) -> bool:
        return bool(self._pending or self._due_later)

    def _decide(self, number: int, count: int) -> None:
        if count <= self._known.get(number, (0, 0.0))[0]:
            return
        self._known[number] = count, monotonic()
        self._pending.append((number, count))
        self._deadline = monotonic() + min(LONGEST, max(PATIENCE, 2 * self._apart))
        if not self._reminding:
            self._reminding = True
            threading.Thread(target=self._remind, name="autoddp", daemon=True).start()

    def _remind(self) -> None:
        while self._reminding or self._open:  # one may come just as this thread finds none
            time.sleep(max(0.2, self._deadline - monotonic()))
            if not self._open:
                self._reminding = False  # the next one starts another thread
            elif self.act is not None:
                signal.pthread_kill(self._context.thread, NEWS)

    def _run_due(self) -> None:
        while self._due and self._due[0][0] <= self.passed:
            _, (number, count) = self._due.pop(0)
            self._known[number] = count, monotonic()
            inside, acting, self._inside, self.acting = self._inside, self.acting, 0, False
            try:
                assert self.act is not None
                self.act(number)
            finally:
                self._inside, self.acting = inside, acting

    # ---- between ranks

    def _ask(self) -> None:
        """Ask, on rank 0, whether all ranks are here; if so, all act here, without a point."""
        self._questions += 1
        waited, begun, deadline = set(self._lines), {self._begun}, monotonic() + ANSWER
        with self.quiet():
            self._tell("ask", self._questions, self.passed, self.acting)
            while waited & set(self._lines) and monotonic() < deadline:
                lines = [self._lines[rank].number for rank in waited & set(self._lines)]
                select.select(lines, [], [], 0.05)
                for rank, (what, *content) in self._take():
                    if what == "here" and content[0] == self._questions:
                        waited.discard(rank)
                        begun.add(content[1])
            if waited & set(self._lines):
                self._tell("drop", self._questions)
                self._deadline = monotonic() + PATIENCE
                return
            signals, self._pending = self._pending, []
            moved, self._begun_before = begun != {self._begun_before}, self._begun
            if moved and max(begun):
                self._tell("later", max(begun) + 1, signals)
                self._note("later", max(begun) + 1, signals)
                self._deadline = monotonic() + PATIENCE
                return
            signals = [one for _, one in self._due_later] + signals
            self._tell("go", signals)
        self._note("go", signals)
        self._run_due()

    def _answer(self, waiting: bool) -> None:
        """Tell rank 0, if it asked, that this rank is where rank 0 is, and wait for its word."""
        if self._asked is None:
            return
        question, at, acting = self._asked
        if at != self.passed or (acting and not waiting):
            return
        self._tell("here", question, self._begun)
        with self.quiet():
            while self._asked is not None and self._lines:
                select.select([self._lines[0].number], [], [], ANSWER)
                self._take()
        try:
            self._run_due()
        except BaseException as error:
            if not acting:
                raise
            self._kept = error  # raised within rank 0's effect, whose outcome is still to come

    def _take(self) -> list[tuple[int, list[Any]]]:
        """Return the messages that have come, by rank; note the orders among them."""
        came: list[tuple[int, list[Any]]] = []
        for rank, line in list(self._lines.items()):
            try:
                said = line.arrived()
            except RankEnded:
                self._lines.pop(rank, None)  # the garbage collector may have looked meanwhile
                self._asked = None
                continue
            came += [(rank, json.loads(message)) for message in said or ()]
        for _, (what, *content) in came:
            self._note(what, *content)
        return came

    def _note(self, what: str, *content: Any) -> None:
        """Note an order of rank 0's, or on rank 0 that another rank had a signal."""
        if what == "had":
            self._decide(*content)
        elif what == "at":
            self._due += [(content[0], one) for one in content[1]]
        elif what == "ask":
            self._asked = content[0], content[1], content[2]
        else:  # the end of a question
            self._asked = None
        if what == "later":
            self._due_later += [(content[0], one) for one in content[1]]
        elif what == "go":
            now = [(self.passed, one) for one in content[0]]
            self._due_later, self._due = [], now + self._due

    def _tell(self, *what: Any) -> None:
        data = json.dumps(what).encode()
        for line in self._lines.values():
            line.send(data)
        for line in self._lines.values():
            line.settle(ANSWER)
