"""The ranks above 0 of one call: forks of this process, which rank 0 watches to their end.

Rank 0 watches them in a thread, since its main thread may be inside a collective that a dead rank
never answers: then nothing but the end of the process ends the wait.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import sys
import threading
import time
import warnings
from typing import NoReturn

from autoddp.decorator import notebook
from autoddp.errors import Disagreement
from autoddp.launch.failure import Failure
from autoddp.process import streams
from autoddp.process.launcher_signals import ENDING, live_with
from autoddp.process.streams import Logs, tail

PATIENCE = 5.0  # seconds that a rank which raised leaves to the others to raise, too
LAST = 120.0  # seconds that the others have to return once rank 0 has
TICK, SOON = 0.2, 0.001  # seconds between two looks: of the watcher, of who waits for the end
RUNNING, RETURNED, RAISED = range(3)


class Forks:
    """All ranks above 0 of one call, as rank 0 starts and watches them."""

    def __init__(self, site: str, ranks: int, logs: Logs) -> None:
        self.site, self.ranks, self.logs = site, ranks, logs  # site: name of the function
        self.pid, self.pids = os.getpid(), dict[int, int]()  # pids: of those that have not ended
        self.words = mmap.mmap(-1, ranks)  # what each rank has come to, in memory that all share
        self._stop = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="autoddp", daemon=True)

    def start(self) -> int:
        """Fork the ranks, and return this process's rank."""
        streams.flush()
        for rank in range(1, self.ranks):
            with warnings.catch_warnings():
                # newer Pythons warn of any thread; `forkable` has looked at each
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
            if pid == 0:
                live_with(self.pid)
                return rank
            self.pids[rank] = pid
        self._watcher.start()
        return 0

    def say(self, rank: int, word: int) -> None:
        """Say what a rank has come to."""
        streams.flush()
        self.words[rank] = word

    def settle(self, word: int) -> None:
        """Wait for the others to return or raise like rank 0, for as long as that may take them.

        If rank 0 has returned and another has not, the whole program ends; not so a session in
        which somebody works, and whose variables are rank 0's.

        Raises:
            Disagreement: Another rank has not returned, in such a session.
        """
        self.say(0, word)
        interrupted = isinstance(sys.exception(), KeyboardInterrupt)
        patience = LAST if word == RETURNED else 0 if interrupted else PATIENCE
        deadline = time.monotonic() + patience
        while RUNNING in self.words[:] and time.monotonic() < deadline:
            time.sleep(SOON)
        other = next((rank for rank in range(self.ranks) if self.words[rank] != word), None)
        if other is None or word == RAISED:  # rank 0's error is the reason
            return
        did = "raised an exception in" if self.words[other] == RAISED else "did not return from"
        what = f"{did} {self.site}, rank 0 returned"
        if notebook.interactive():
            said = tail(self.logs.of(other))
            raise Disagreement(f"rank {other} {what}; the end of its log:\n{said}")
        self.fail(other, what, 1)

    def close(self) -> None:
        """End all ranks; do nothing in a child of this process, which has no ranks."""
        if os.getpid() != self.pid:
            return
        self._stop.set()
        if self._watcher.is_alive():
            self._watcher.join()  # from here on the end of a rank is no news
        self._kill()
        for pid in self.pids.values():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        self.logs.remove()

    def fail(self, rank: int, what: str, code: int) -> NoReturn:
        """Name the rank, show its log, and end the program: rank 0 might wait for it for ever."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError, RuntimeError):
                stream.flush()
        notebook.say_last(f"{self.logs.failure(rank, what)}\n")
        if not self.logs.said(rank):
            self.logs.remove()
        self._kill()
        os._exit(code)

    def _kill(self) -> None:
        for pid in self.pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _watch(self) -> None:
        """End the program where a rank has ended, or has left the call alone."""
        since: dict[int, float] = {}  # when each was seen to have raised
        while not self._stop.wait(TICK):
            for rank in list(self.pids):
                code = self._ended(rank)
                if code is not None:
                    what = Failure(rank, rank, code).what
                    self.fail(rank, what, 128 - code if code < 0 else 1)
                if self.words[rank] == RAISED and self.words[0] == RUNNING:
                    now = time.monotonic()
                    if now - since.setdefault(rank, now) > PATIENCE:
                        self.fail(rank, f"raised an exception in {self.site}, rank 0 did not", 1)

    def _ended(self, rank: int) -> int | None:
        """Return the exit code of a rank that has ended; negative: minus the signal."""
        try:
            pid, status = os.waitpid(self.pids[rank], os.WNOHANG)
        except ChildProcessError:  # the script has waited for it itself
            pid, status = self.pids[rank], 1 << 8
        if pid:
            del self.pids[rank]
            return os.waitstatus_to_exitcode(status)
        return None


def end() -> NoReturn:
    """Wait, as a rank above 0, until rank 0 is through: the others may need this one until then."""
    try:
        for number in ENDING:  # what becomes of them, rank 0 decides
            signal.signal(number, signal.SIG_IGN)
        streams.flush()
        while True:
            signal.pause()  # rank 0 kills this process
    finally:  # also after what a handler of the script's raises here
        os._exit(0)
