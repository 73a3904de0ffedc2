"""The ranks above 0 of one call: forks of this process, which rank 0 watches to their end.

Rank 0 watches them in a thread, since its main thread may be inside a collective that a dead rank
never answers: then nothing but the end of the process ends the wait.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import warnings
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn

from autoddp.decorator import notebook
from autoddp.errors import Disagreement
from autoddp.launch.failure import Failure
from autoddp.process import streams
from autoddp.process.launcher_signals import ENDING, live_with
from autoddp.process.streams import Logs, tail

PATIENCE = 5.0  # seconds that a rank which raised leaves to the others to raise, too
LAST = 120.0  # seconds that the others have to return once rank 0 has
TICK = 0.2  # seconds


@dataclass
class Fork:
    """A rank above 0, as rank 0 knows it."""

    rank: int
    pid: int
    line: Connection
    word: str = ""  # the last one heard: returned, raised
    since: float = 0.0  # when it was heard
    code: int | None = None  # once it has ended; negative: minus the signal
    pidfd: int = field(init=False)

    def __post_init__(self) -> None:
        self.pidfd = os.pidfd_open(self.pid)

    def kill(self) -> None:
        if self.code is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def reap(self) -> None:
        """Wait for the process of the rank, and keep its exit code."""
        self.code = 1
        with contextlib.suppress(ChildProcessError):  # the script has waited for it itself
            found = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED)
            assert found is not None
            self.code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
        os.close(self.pidfd)


class Forks:
    """All ranks above 0 of one call, as rank 0 starts and watches them."""

    def __init__(self, site: str, logs: Logs) -> None:
        self.site = site  # name of the function
        self.logs = logs
        self.members: list[Fork] = []
        self.pid = os.getpid()
        self._news = threading.Condition()
        self._returned = False  # whether rank 0 has left the call
        self._stop, self._stopped = Pipe()
        self._watcher = threading.Thread(target=self._watch, name="autoddp", daemon=True)

    def start(self, size: int) -> tuple[int, Connection | None]:
        """Fork the ranks; return this process's rank and, above 0, its line to rank 0."""
        streams.flush()
        for rank in range(1, size):
            ours, theirs = Pipe()
            with warnings.catch_warnings():
                # newer Pythons warn of any thread; `forkable` has looked at each
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
            if pid == 0:
                live_with(self.pid)
                for line in (ours, *(member.line for member in self.members)):
                    line.close()
                return rank, theirs
            theirs.close()
            self.members.append(Fork(rank, pid, ours))
        self._watcher.start()
        return 0, None

    def settle(self, word: str) -> None:
        """Wait for the others to return or raise like rank 0, for as long as that may take them.

        If rank 0 has returned and another has not, the whole program ends; not so a session in
        which somebody works, and whose variables are rank 0's.

        Args:
            word: "returned" or "raised", what rank 0 has done.

        Raises:
            Disagreement: Another rank has not returned, in such a session.
        """
        interrupted = isinstance(sys.exception(), KeyboardInterrupt)
        patience = LAST if word == "returned" else 0 if interrupted else PATIENCE
        with self._news:
            self._returned = True
            self._news.wait_for(lambda: all(m.word for m in self.members), patience)
        other = next((m for m in self.members if m.word != word), None)
        if other is None or word == "raised":  # rank 0's error is the reason
            return
        what = "raised an exception in" if other.word == "raised" else "did not return from"
        what = f"{what} {self.site}, rank 0 returned"
        if notebook.interactive():
            said = tail(self.logs.of(other.rank))
            raise Disagreement(f"rank {other.rank} {what}; the end of its log:\n{said}")
        self.fail(other, what, 1)

    def close(self) -> None:
        """End all ranks; do nothing in a child of this process, which has no ranks."""
        if os.getpid() != self.pid:
            return
        self._stop.send("")  # closing it would end nothing: forks hold it, too
        if self._watcher.is_alive():
            self._watcher.join()  # from here on the end of a rank is no news
        self._stop.close()
        self._stopped.close()
        for member in self.members:
            member.line.close()
            if member.code is None:
                member.kill()
                member.reap()
        self.logs.remove()

    def fail(self, member: Fork, what: str, code: int) -> NoReturn:
        """Name the rank, show its log, and end the program: rank 0 might wait for it for ever."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError, RuntimeError):
                stream.flush()
        notebook.say_last(f"{self.logs.failure(member.rank, what)}\n")
        if not self.logs.said(member.rank):
            self.logs.remove()
        for other in self.members:
            other.kill()
        os._exit(code)

    # ---- the watcher

    def _watch(self) -> None:
        lines = {member.line: member for member in self.members}
        ends = {member.pidfd: member for member in self.members}
        while True:
            ready: list[Any] = wait([self._stopped, *lines, *ends], TICK)
            if self._stopped in ready:
                return
            with self._news:
                for line in [one for one in ready if one in lines]:  # a rank may speak and end
                    try:
                        lines[line].word, lines[line].since = line.recv(), time.monotonic()
                    except (EOFError, OSError):
                        del lines[line]
                for end in [one for one in ready if one in ends]:
                    ends.pop(end).reap()
                self._judge()
                self._news.notify_all()

    def _judge(self) -> None:
        """End the program where a rank has left the call alone."""
        for member in self.members:
            if member.code is not None:
                what = Failure(member.rank, member.rank, member.code).what
                self.fail(member, what, -member.code + 128 if member.code < 0 else 1)
            alone = member.word == "raised" and not self._returned
            if alone and time.monotonic() - member.since > PATIENCE:
                self.fail(member, f"raised an exception in {self.site}, rank 0 did not", 1)


def say(line: Connection, word: str) -> None:
    """Say to rank 0, if it is still there, what a rank has done: "returned" or "raised"."""
    streams.flush()
    with contextlib.suppress(OSError):
        line.send(word)


def end(line: Connection) -> NoReturn:
    """End this rank when rank 0 is through: the others may need it until then."""
    try:
        for number in ENDING:  # what becomes of them, rank 0 decides
            signal.signal(number, signal.SIG_IGN)
        streams.flush()
        line.recv()
    finally:  # also after what a handler of the script's raises here
        os._exit(0)
