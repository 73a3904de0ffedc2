"""The ranks that this process started by itself: their orders, their watch, their end.

Rank 0 watches them in a thread, since its main thread may be inside a collective that a dead rank
never answers: then nothing but the end of the process ends the wait.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any, NoReturn

from autoddp.decorator import notebook
from autoddp.launch.failure import Failure
from autoddp.process import streams
from autoddp.process.streams import Logs

PATIENCE = 5.0  # seconds that a rank which raised leaves to the others to raise, too
LAST = 120.0  # seconds that the others have to return once rank 0 has
MESSAGE = 1 << 16
TICK = 200  # milliseconds


@dataclass
class WorkerHandle:
    """The handle by which rank 0 knows a rank above 0."""

    rank: int
    pid: int
    channel: socket.socket
    process: subprocess.Popen[bytes] | None = None
    word: str = ""  # the last one heard: arrived, returned, raised
    since: float = 0.0  # when it was heard
    code: int | None = None  # once it has ended; negative: minus the signal
    pidfd: int = field(init=False)

    def __post_init__(self) -> None:
        self.pidfd = os.pidfd_open(self.pid)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def reap(self) -> int:
        """Wait for the process of the rank, and return its exit code, negative for a signal."""
        try:
            found = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED)
        except ChildProcessError:
            found = None  # the script has waited for the process itself
        os.close(self.pidfd)
        self.code = 1
        if found is not None:
            self.code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
        if self.process is not None:
            self.process.returncode = self.code
        return self.code


class ParentLink:
    """The link of a rank above 0 to rank 0, which gives it orders."""

    def __init__(self, rank: int, size: int, channel: socket.socket) -> None:
        self.rank, self.size, self.channel = rank, size, channel
        self.guard: contextlib.ExitStack | None = None  # while the script runs outside a job

    def wait(self) -> dict[str, Any]:
        """Wait for the next order and return it; end this process if rank 0 has ended."""
        try:
            data = self.channel.recv(MESSAGE)
        except ConnectionError:
            data = b""
        if not data:
            streams.flush()
            os._exit(0)
        order: dict[str, Any] = json.loads(data)
        return order

    def tell(self, word: str, what: str = "") -> None:
        """Send a word to rank 0, if it is still there."""
        with contextlib.suppress(ConnectionError):
            self.channel.send(json.dumps([word, what]).encode())


class Workers:
    """All ranks above 0, as rank 0 starts, orders and watches them."""

    def __init__(self, logs: Logs, copied: bool) -> None:
        self.logs = logs
        self.copied = copied  # just forked: they have all that rank 0 has
        self.members: list[WorkerHandle] = []
        self.site = ""  # name of the function of the present job; empty between two jobs
        self.pid = os.getpid()
        self._news = threading.Condition()
        self._returned = False  # whether rank 0 has left the call
        self._wake, self._woken = os.pipe()
        self._watcher = threading.Thread(target=self._watch, name="autoddp", daemon=True)

    @property
    def alive(self) -> bool:
        """Return whether all ranks can still be given orders."""
        return bool(self.members) and all(m.code is None for m in self.members)

    @property
    def through(self) -> bool:
        """Return whether all ranks have left the call."""
        return all(m.word in ("returned", "raised") for m in self.members)

    def owns(self, thread: threading.Thread) -> bool:
        """Return whether a thread is the watcher."""
        return thread is self._watcher

    def order(self, **what: Any) -> None:
        """Send an order to all ranks above 0."""
        with contextlib.suppress(ConnectionError):  # the watcher knows why
            for member in self.members:
                member.channel.send(json.dumps(what).encode())

    def begin(self, site: str) -> None:
        """Begin a job: from here to `end` a rank that ends takes the program with it."""
        with self._news:
            if self._watcher.is_alive():  # else nothing that they have said has been read yet
                for member in self.members:
                    member.word = ""
            self.site, self._returned = site, False
        if not self._watcher.is_alive():
            self._watcher.start()

    def gather(self) -> None:
        """Wait until all ranks have come to the call."""
        with self._news:
            while not all(m.word for m in self.members):
                self._news.wait()

    def settle(self, word: str, patience: float) -> list[WorkerHandle]:
        """Wait for the others to return or raise, once rank 0 has.

        Args:
            word: "returned" or "raised", what rank 0 has done.
            patience: Seconds to wait.

        Returns:
            Ranks that have done otherwise, or nothing yet.
        """
        deadline = time.monotonic() + patience
        with self._news:
            self._returned = True
            while not self.through:
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                self._news.wait(left)
        return [m for m in self.members if m.word != word]

    def end(self) -> None:
        """End the job, after which the ranks wait for another one."""
        self.site = ""

    def close(self) -> None:
        """End all ranks; do nothing in a child of this process, which has no ranks."""
        if os.getpid() != self.pid or self._wake < 0:
            return
        self.site = ""
        for member in self.members:
            member.channel.close()
            if member.code is None:
                member.kill()
        os.close(self._woken)
        if self._watcher.is_alive():
            self._watcher.join()
        os.close(self._wake)
        self._wake = -1
        for member in self.members:
            if member.code is None:
                member.reap()
        self.logs.remove()

    def fail(self, member: WorkerHandle, what: str, code: int) -> NoReturn:
        """Name the rank, show its log, and end the program: rank 0 might wait for it for ever."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError, RuntimeError):
                stream.flush()
        line = self.logs.failure(member.rank, what)
        notebook.say_last(f"{line}\n")
        if not self.logs.said(member.rank):
            self.logs.remove()
        for other in self.members:
            if other.code is None:
                other.kill()
        os._exit(code)

    # ---- the watcher

    def _watch(self) -> None:
        poller = select.poll()
        poller.register(self._wake, select.POLLIN)
        channels = {m.channel.fileno(): m for m in self.members}
        ends = {m.pidfd: m for m in self.members}
        for number in (*channels, *ends):
            poller.register(number, select.POLLIN)
        while True:
            ready = {number for number, _ in poller.poll(TICK)}
            if self._wake in ready:
                return
            with self._news:
                for number in ready & set(channels):  # words first: a rank may speak and end
                    if not self._hear(channels[number]):
                        poller.unregister(number)
                for number in ready & set(ends):
                    poller.unregister(number)
                    ends[number].reap()
                self._judge()
                if ready:
                    self._news.notify_all()

    def _hear(self, member: WorkerHandle) -> bool:
        """Read what a rank says, and return whether more may come."""
        try:
            data = member.channel.recv(MESSAGE)
        except OSError:
            data = b""
        if data:
            member.word, what = json.loads(data)
            member.since = time.monotonic()
            if member.word == "arrived" and self.site and what != self.site:
                self.fail(member, f"came to {what}, rank 0 to {self.site}", 1)
        return bool(data)

    def _judge(self) -> None:
        """End the program where a rank has left the job alone."""
        if not self.site:
            return
        for member in self.members:
            if member.code is not None:
                before = "" if member.word else f" before it came to {self.site}"
                what = Failure(member.rank, member.rank, member.code).what
                self.fail(member, what + before, -member.code + 128 if member.code < 0 else 1)
            alone = member.word == "raised" and not self._returned
            if alone and time.monotonic() - member.since > PATIENCE:
                self.fail(member, f"raised an exception in {self.site}, rank 0 did not", 1)
