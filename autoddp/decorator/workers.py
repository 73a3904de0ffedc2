"""The ranks that this process started by itself, for one call: their watch and their end.

Rank 0 watches them in a thread, since its main thread may be inside a collective that a dead rank
never answers: then nothing but the end of the process ends the wait.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import NoReturn

from autoddp.decorator import notebook
from autoddp.errors import Disagreement
from autoddp.launch.failure import Failure
from autoddp.process import streams
from autoddp.process.launcher_signals import ENDING
from autoddp.process.streams import Logs, tail

PATIENCE = 5.0  # seconds that a rank which raised leaves to the others to raise, too
LAST = 120.0  # seconds that the others have to return once rank 0 has
WORD = 64  # bytes
TICK = 200  # milliseconds


@dataclass
class WorkerHandle:
    """The handle by which rank 0 knows a rank above 0."""

    rank: int
    pid: int
    channel: socket.socket
    word: str = ""  # the last one heard: returned, raised
    since: float = 0.0  # when it was heard
    code: int | None = None  # once it has ended; negative: minus the signal
    pidfd: int = field(init=False)

    def __post_init__(self) -> None:
        self.pidfd = os.pidfd_open(self.pid)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def reap(self) -> None:
        """Wait for the process of the rank, and keep its exit code."""
        try:
            found = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED)
        except ChildProcessError:
            found = None  # the script has waited for the process itself
        os.close(self.pidfd)
        self.code = 1
        if found is not None:
            self.code = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


class ParentLink:
    """The link of a rank above 0 to rank 0."""

    def __init__(self, rank: int, channel: socket.socket) -> None:
        self.rank, self.channel = rank, channel

    def tell(self, word: str) -> None:
        """Send a word to rank 0, if it is still there: "returned" or "raised"."""
        with contextlib.suppress(ConnectionError):
            self.channel.send(word.encode())

    def end(self) -> NoReturn:
        """End this process when rank 0 is through: the other ranks may need it until then."""
        try:
            for number in ENDING:  # what becomes of them, rank 0 decides
                signal.signal(number, signal.SIG_IGN)
            streams.flush()
            self.channel.recv(WORD)
        finally:  # also after what a handler of the script's raises here
            os._exit(0)


class Workers:
    """All ranks above 0 of one call, as rank 0 starts and watches them."""

    def __init__(self, site: str, logs: Logs) -> None:
        self.site = site  # name of the function
        self.logs = logs
        self.members: list[WorkerHandle] = []
        self.pid = os.getpid()
        self._news = threading.Condition()
        self._returned = False  # whether rank 0 has left the call
        self._wake, self._woken = os.pipe()
        self._watcher = threading.Thread(target=self._watch, name="autoddp", daemon=True)

    def watch(self) -> None:
        """Watch the ranks, once all are forked: one that ends takes the program with it."""
        self._watcher.start()

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
        self._wait(LAST if word == "returned" else 0 if interrupted else PATIENCE)
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
        os.write(self._woken, b".")
        if self._watcher.is_alive():
            self._watcher.join()  # from here on the end of a rank is no news
        os.close(self._wake)
        os.close(self._woken)
        for member in self.members:
            member.channel.close()
            if member.code is None:
                member.kill()
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

    def _wait(self, patience: float) -> None:
        """Wait until all others have left the call, or their time is up."""
        deadline = time.monotonic() + patience
        with self._news:
            self._returned = True
            while not all(m.word for m in self.members):
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                self._news.wait(left)

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
            data = member.channel.recv(WORD)
        except OSError:
            data = b""
        if data:
            member.word, member.since = data.decode(), time.monotonic()
        return bool(data)

    def _judge(self) -> None:
        """End the program where a rank has left the call alone."""
        for member in self.members:
            if member.code is not None:
                what = Failure(member.rank, member.rank, member.code).what
                self.fail(member, what, -member.code + 128 if member.code < 0 else 1)
            alone = member.word == "raised" and not self._returned
            if alone and time.monotonic() - member.since > PATIENCE:
                self.fail(member, f"raised an exception in {self.site}, rank 0 did not", 1)
