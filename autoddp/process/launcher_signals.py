"""Signals of a job: each one that reaches the launcher reaches each of its ranks, once.

A terminal's Ctrl-C goes to the whole foreground group, `kill` to the launcher alone. So the node's
first rank reports the signals that it has received, through the descriptor that Python's own
handler writes to (`signal.set_wakeup_fd`), and the launcher passes on to all what that rank has not
received. A second Ctrl-C while the first is still being handled ends the job at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from types import FrameType

from autoddp.comm.signal_sync import RETURNED

FORWARDED = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
)
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
SETTLE = 0.1  # seconds in which a rank that received the signal by itself reports it
ECHO = 1.0  # seconds in which it reports one that was sent from here, also on a busy machine
ALONE = 5.0  # seconds that the others have, at most, once rank 0 has ended after a signal
TICK, SOON = 0.05, 0.002
RUNNING = -1


class LauncherSignals:
    """The memory and pipe between launcher and ranks, made before the fork; each uses its half."""

    def __init__(self, ranks: int, grace: float) -> None:
        self.launcher = os.getpid()
        self.ranks, self.grace = ranks, grace
        self.ending: int | None = None  # the signal that is to end the job
        self._interrupted = False
        self._found = {number: signal.getsignal(number) for number in FORWARDED}
        self._heard: Counter[int] = Counter()
        self._reading, self._writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        size = ranks * ctypes.sizeof(ctypes.c_int)
        self._codes = (ctypes.c_int * ranks).from_buffer(mmap.mmap(-1, size))
        self.restart()

    # ---- the launcher's half

    def wait(self) -> None:
        """Have SIGINT end the launcher at once, in place of Python's own handler, until `listen`.

        Torch may wait for other nodes meanwhile, where no handler of Python's can run.
        """
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)

    def listen(self) -> None:
        """Pass signals on to the ranks from here on; ignored signals stay ignored (nohup)."""
        for number, handler in self._found.items():
            if handler is not None:
                ignored = handler is signal.SIG_IGN
                signal.signal(number, handler if ignored else self.pass_on)

    def leave(self) -> None:
        """Put the launcher's own handlers back, as a rank does in its fork."""
        for number, handler in self._found.items():
            if handler is not None:
                signal.signal(number, handler)

    def code_of(self, local_rank: int) -> int | None:
        """Return the exit code with which a rank's script ended by itself, None if it did not."""
        code = self._codes[local_rank]
        return None if code == RUNNING else code

    def restart(self) -> None:
        """Forget what the ranks have reported, as they start once more."""
        self._codes[:] = [RUNNING] * self.ranks
        self._has_had(0)  # empties the pipe
        self._heard.clear()

    def pass_on(self, number: int, frame: FrameType | None) -> None:
        """Send the ranks a signal, unless the first has received it by itself, or it is ignored."""
        if self._found[number] in (signal.SIG_IGN, None):
            return
        if os.getpid() != self.launcher:
            os._exit(128 + number)  # a rank that has not called `arrive` yet: nothing was started
        if number == signal.SIGINT and self._interrupted and not self._has_had(RETURNED + number):
            self.ending = self.ending or number
            kill()
            return
        self._interrupted |= number == signal.SIGINT
        if not self._reports(number, SETTLE):
            for child in multiprocessing.active_children():
                assert child.pid is not None
                os.kill(child.pid, number)  # an unwaited child: the number is still its own
            self._reports(number, ECHO)  # else it would hide the next signal
        if number in ENDING and self.ending is None:
            self.ending = number
            threading.Thread(target=self._see_to_the_end, daemon=True).start()

    def _reports(self, number: int, seconds: float) -> bool:
        """Return whether the first rank reports a signal in so many seconds."""
        deadline = time.monotonic() + seconds
        while not (had := self._has_had(number)) and time.monotonic() < deadline:
            time.sleep(SOON)
        return had

    def _has_had(self, number: int) -> bool:
        """Return whether the first rank has reported a signal since the last call.

        With `RETURNED` added: whether the script's own handler has returned, so that the script
        goes on, and may be signalled again.
        """
        with contextlib.suppress(BlockingIOError):  # the rank has reported nothing new
            self._heard.update(os.read(self._reading, 4096))
        return self._heard.pop(number, 0) > 0

    def _see_to_the_end(self) -> None:
        """Kill the remaining ranks after the grace period, once one rank has ended after a signal.

        A script may outlive a signal, but only on all ranks together.
        """
        while all(self.code_of(rank) is None for rank in range(self.ranks)):
            time.sleep(TICK)
        deadline = time.monotonic() + self.grace
        while time.monotonic() < deadline:
            if self.code_of(0) is not None:
                deadline = min(deadline, time.monotonic() + ALONE)
            time.sleep(TICK)
        kill()

    # ---- a rank's half

    def arrive(self, local_rank: int) -> None:
        """Set up a rank in its fork: the handlers of one process, and the pipe to the launcher."""
        live_with(self.launcher)
        if local_rank == 0:
            signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
            os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
        self.leave()

    def ended(self, local_rank: int, code: int) -> None:
        """Record for the launcher that a rank's script has ended by itself, with this exit code."""
        self._codes[local_rank] = code


def live_with(parent: int) -> None:
    """Have the kernel end this process together with `parent`, however that ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def kill() -> None:
    """Kill all ranks of this node, at once."""
    for child in multiprocessing.active_children():
        child.kill()


def by_default() -> None:
    """Have this process end on every signal in `ENDING`, whatever the script has set."""
    for number in ENDING:
        signal.signal(number, signal.SIG_DFL)
