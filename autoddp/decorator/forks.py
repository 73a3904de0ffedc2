"""The ranks above 0 of one call: forks of this process, which rank 0 watches to their end.

Rank 0 watches them in a thread, since its main thread may wait in a collective that a dead rank
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

GRACE = 5.0  # seconds that a rank which raised leaves to the others to raise, too
LAST = 120.0  # seconds that the others have to return once rank 0 has
TICK, SOON = 0.2, 0.001  # seconds between two looks: of the watcher, of who waits for the end
RUNNING, RETURNED, RAISED = range(3)


class Forks:
    """All ranks above 0 of one call, as rank 0 starts and watches them."""

    def __init__(self, site: str, ranks: int, logs: Logs) -> None:
        self.site, self.ranks, self.logs = site, ranks, logs  # site: name of the function
        self.pid, self.pids = os.getpid(), dict[int, int]()  # pids: of those that have not ended
        self.states = mmap.mmap(-1, ranks)  # of each rank, in memory that all share
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

    def note(self, rank: int, state: int) -> None:
        """Note that a rank has returned or raised."""
        streams.flush()
        self.states[rank] = state

    def conclude(self, state: int) -> None:
        """Wait for the others to return or raise like rank 0, for a limited time.

        If rank 0 has returned and another rank has not, the whole program ends, unless this is an
        interactive session, whose variables are those of rank 0.

        Raises:
            Disagreement: Another rank has not returned, in an interactive session.
        """
        self.note(0, state)
        interrupted = isinstance(sys.exception(), KeyboardInterrupt)
        grace = LAST if state == RETURNED else 0 if interrupted else GRACE
        deadline = time.monotonic() + grace
        while RUNNING in self.states[:] and time.monotonic() < deadline:
            time.sleep(SOON)
        other = next((rank for rank in range(self.ranks) if self.states[rank] != state), None)
        if other is None or state == RAISED:  # rank 0's error is the reason
            return
        did = "raised an exception in" if self.states[other] == RAISED else "did not return from"
        what = f"{did} {self.site}, rank 0 returned"
        if notebook.interactive():
            log = tail(self.logs.of(other))
            raise Disagreement(f"rank {other} {what}; the end of its log:\n{log}")
        self.fail(other, what, 1)

    def close(self) -> None:
        """End all ranks; do nothing in a child of this process, which has no ranks."""
        if os.getpid() != self.pid:
            return
        self._stop.set()
        if self._watcher.is_alive():
            self._watcher.join()  # from here on, ranks end because they are killed here
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
        if not self.logs.has_output(rank):
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
                if self.states[rank] == RAISED and self.states[0] == RUNNING:
                    now = time.monotonic()
                    if now - since.setdefault(rank, now) > GRACE:
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
    """Wait, as a rank above 0, until rank 0 ends this process, which others may need until then."""
    try:
        for number in ENDING:  # rank 0 acts on them
            signal.signal(number, signal.SIG_IGN)
        streams.flush()
        while True:
            signal.pause()  # rank 0 kills this process
    finally:  # also if a handler of the script raises here
        os._exit(0)
