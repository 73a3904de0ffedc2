"""Points of the program at which all ranks run the handler of a signal together.

Every call and every collective is a point, and all ranks count them alike. Rank 0 decides. With a
signal pending, what it sends at a point carries an order: the script's handler runs at that point's
end, which no rank has passed without that message. While the others wait for what rank 0 does, it
orders them to run the handler at once.

Where nobody waits for rank 0 (a long sleep; accelerators wait, and threads do not), it asks all
ranks how many points they have passed, and they wait for its answer: the handlers run at the end of
the next point that no rank has passed; or here, if none has passed any since the signal. A rank
inside a point does not reply, and rank 0 asks again later.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from multiprocessing.connection import wait
from threading import get_ident
from time import monotonic  # a script's is patched
from typing import Any

from autoddp.comm.context import Code, Context, Within
from autoddp.comm.line import Lines
from autoddp.errors import RankEnded

NEWS = signal.SIGURG  # a question has come; ignored by default, so it never ends a process
NOW = 0  # the point of an order to act here
AT_ONCE = b"n"  # the first byte of a message of rank 0: signals to act on in the midst of a call
POINT_TIMEOUT = 1.0  # seconds without a point until rank 0 asks
ANSWER = 2.0  # seconds in which all ranks must have replied
STALE = 1.0  # seconds in which one signal reaches all ranks that get it by themselves
RETURNED = 128  # plus a signal's number: reports that the script's handler has returned


class SignalSync:
    """One rank's count of the points, and its connections for questions and for orders.

    Attributes:
        act: Runs the script's handler of a signal; None where each rank handles its own.
    """

    def __init__(self, rank: int, lines: Lines, calls: Lines, context: Context) -> None:
        self.rank, self._lines, self._calls, self._context = rank, lines, calls, context
        self.act: Callable[[int], None] | None = None
        self._passed = 0
        self._missed = True  # what came before the kernel sends a signal for it
        self._pending: list[int] = []  # signals without an order yet
        self._due: list[tuple[int, int]] = []  # the point at whose end a signal's handler runs
        self._question: int | None = None  # the number of rank 0's, and that of its last one
        self._questions = 0
        self._passed_then = 0  # points, when rank 0 began to wait for one
        self._first: dict[int, tuple[int, float]] = {}  # the rank that got a signal, and when
        self._deadline = 0.0

    # ---- the program's points

    def here(self) -> bool:
        """Return whether all ranks come to this place, on the thread that runs the script."""
        return self.act is not None and self._context.on_script_thread()

    def order(self) -> bytes:
        """Return, on rank 0, the order that its message at a point carries; empty if none."""
        if self.rank or not self._pending or not self.here():
            return b""
        signals, self._pending = self._pending, []
        return json.dumps(signals).encode()

    def ordered(self, order: bytes) -> None:
        """Note rank 0's order for the end of the point that this rank is at."""
        if order:
            self._note(self._passed + 1, json.loads(order))

    def leave(self) -> None:
        """End a point, and run the handlers that are due."""
        if self.act is None:
            return
        self._passed += 1
        if self._due:
            self._run_due()
        if self._missed:
            self.news()

    def quiet(self) -> AbstractContextManager[object]:
        """Hold questions back while this rank sends or receives on the script's thread."""
        context = self._context
        here = get_ident() == context.thread
        return Within(context.depth, Code.TALKING) if here else nullcontext()

    def obey(self, signals: bytes) -> None:
        """Act at once, on another rank, on signals that rank 0 got in a call, which goes on.

        If a handler raises, it ends the act on rank 0, and the outcome is that exception.
        """
        self._note(NOW, json.loads(signals))
        with suppress(BaseException):
            self._run_due()

    def _act_at_once(self) -> None:
        """Order the others, who wait for what rank 0 does, to act at once, and do so."""
        signals, self._pending = self._pending, []
        with self.quiet():
            self._calls.send(AT_ONCE + json.dumps(signals).encode())
        self._note(NOW, signals)
        self._run_due()

    def _note(self, point: int, signals: list[int]) -> None:
        if point == NOW:
            self._due = [(NOW, number) for _, number in self._due]
        self._due += [(point, number) for number in signals]

    def _run_due(self) -> None:
        while self._due and self._due[0][0] <= self._passed and self.act is not None:
            self.act(self._due.pop(0)[1])

    # ---- signals

    def received(self, number: int) -> None:
        """Take a signal that the script handles: on rank 0 decide, on others tell rank 0."""
        assert self.act is not None
        if not self._context.is_rank():
            self.act(number)  # a child of the rank
        elif self.rank and self._lines:
            self._tell("had", number)
        else:
            self._decide(number, self.rank)
            self.news()

    def _decide(self, number: int, source: int) -> None:
        """Decide, on rank 0 or where the others have ended, about a signal that `source` got."""
        first, when = self._first.get(number, (source, 0.0))
        waits = number in self._pending or number in (due for _, due in self._due)
        if first != source and (waits or monotonic() - when < STALE):
            return  # one signal, which several ranks got
        self._first[number] = source, monotonic()
        if not self._open():
            self._await_point()
        self._pending.append(number)

    def _await_point(self) -> None:
        self._passed_then, self._deadline = self._passed, monotonic() + POINT_TIMEOUT
        threading.Thread(target=self._wake, name="autoddp", daemon=True).start()

    def _wake(self) -> None:
        """Interrupt the script if no point has come, so that this rank asks the others."""
        time.sleep(POINT_TIMEOUT)
        if self._open() and self.act is not None:
            signal.pthread_kill(self._context.thread, NEWS)

    def _open(self) -> bool:
        return bool(self._pending or self._due)

    # ---- questions

    def news(self, *_: object) -> None:
        """Take what has come: a question, or that another rank got a signal; ask if it is time."""
        self._missed = True
        depth = self._context.depth
        if self.act is None or depth[Code.TALKING] or not self._context.is_rank():
            return
        self._missed = False
        self._take()
        if self.rank and self._lines:
            self._answer()
        elif self._open() and depth[Code.ACTING]:
            self._act_at_once()
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
        """Reply to rank 0, if it asked, how many points are passed here; wait for its order."""
        if self._question is None:
            return
        self._tell("here", self._question, self._passed)
        with self.quiet():
            while self._question is not None and self._lines:
                wait([line.socket for line in self._lines.values()], ANSWER)
                self._take()
        self._run_due()

    def _take(self) -> list[tuple[int, list[Any]]]:
        """Return the messages that have come, by rank; act on those that need no reply."""
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
        self._lines.send(json.dumps(what).encode())
