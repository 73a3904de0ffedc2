"""The ranks above 0 of one call: forks of this process, which rank 0 watches in a thread.

Rank 0's main thread may wait in a collective for a dead rank; then only the end of the process ends
the wait.
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

GRACE = 5.0  # seconds to wait for the other ranks to raise, once one has raised
RETURN_TIMEOUT = 120.0  # seconds to wait for the other ranks to return, once rank 0 has returned
WATCH_INTERVAL, WAIT_INTERVAL = 0.2, 0.001  # seconds between two checks
RUNNING, RETURNED, RAISED = range(3)


class Forks:
    """The ranks above 0 of one call, which rank 0 starts and watches."""

    def __init__(self, site: str, ranks: int, logs: Logs) -> None:
        self.site, self.ranks, self.logs = site, ranks, logs  # site: name of the function
        self.pid, self.pids = os.getpid(), dict[int, int]()  # pids: of running ranks
        self.states = mmap.mmap(-1, ranks)  # the state of each rank, in shared memory
        self._stop = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="autoddp", daemon=True)

    def start(self) -> int:
        """Fork the ranks, and return this process's rank."""
        streams.flush()
        for rank in range(1, self.ranks):
            with warnings.catch_warnings():
                # Python 3.12 warns of any thread; `forkable` has checked each
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
            if pid == 0:
                live_with(self.pid)
                return rank
            self.pids[rank] = pid
        self._watcher.start()
        return 0

    def set_state(self, rank: int, state: int) -> None:
        """Record that a rank has returned or raised."""
        streams.flush()
        self.states[rank] = state

    def conclude(self, state: int) -> None:
        """Wait for a limited time for the other ranks to return or raise like rank 0.

        If rank 0 has returned and another rank has not, the program ends. An interactive session
        continues, with an exception.

        Raises:
            Disagreement: Another rank has not returned, in an interactive session.
        """
        self.set_state(0, state)
        interrupted = isinstance(sys.exception(), KeyboardInterrupt)
        grace = RETURN_TIMEOUT if state == RETURNED else 0 if interrupted else GRACE
        deadline = time.monotonic() + grace
        while RUNNING in self.states[:] and time.monotonic() < deadline:
            time.sleep(WAIT_INTERVAL)
        other = next((rank for rank in range(self.ranks) if self.states[rank] != state), None)
        if other is None or state == RAISED:  # rank 0's error is the reason
            return
        verb = "raised an exception in" if self.states[other] == RAISED else "did not return from"
        what = f"{verb} {self.site}, but rank 0 returned"
        if notebook.interactive():
            log = tail(self.logs.of(other))
            raise Disagreement(f"rank {other} {what}; the end of its log:\n{log}")
        self.fail(other, what, 1)

    def close(self) -> None:
        """End all ranks; do nothing in a child of this process."""
        if os.getpid() != self.pid:
            return
        self._stop.set()
        if self._watcher.is_alive():
            self._watcher.join()  # before the ranks are killed
        self._kill()
        for pid in self.pids.values():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        self.logs.remove()

    def fail(self, rank: int, what: str, code: int) -> NoReturn:
        """Print the failure and the log of a rank, and end the program."""
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
        """End the program if a rank has ended, or has raised an exception and rank 0 has not."""
        since: dict[int, float] = {}  # the times at which ranks were found to have raised
        while not self._stop.wait(WATCH_INTERVAL):
            for rank in list(self.pids):
                code = self._exit_code(rank)
                if code is not None:
                    what = Failure(rank, rank, code).what
                    self.fail(rank, what, 128 - code if code < 0 else 1)
                if self.states[rank] == RAISED and self.states[0] == RUNNING:
                    now = time.monotonic()
                    if now - since.setdefault(rank, now) > GRACE:
                        self.fail(rank, f"raised an exception in {self.site}, unlike rank 0", 1)

    def _exit_code(self, rank: int) -> int | None:
        """Return the exit code of a rank, or minus its signal; None while it runs."""
        try:
            pid, status = os.waitpid(self.pids[rank], os.WNOHANG)
        except ChildProcessError:  # the script has reaped it
            pid, status = self.pids[rank], 1 << 8
        if pid:
            del self.pids[rank]
            return os.waitstatus_to_exitcode(status)
        return None


def end() -> NoReturn:
    """Wait, as a rank above 0, until rank 0 ends this process; other ranks may still need it."""
    try:
        for number in ENDING:  # rank 0 handles these signals
            signal.signal(number, signal.SIG_IGN)
        streams.flush()
        while True:
            signal.pause()  # rank 0 kills this process
    finally:  # also if a handler of the script raises here
        os._exit(0)
