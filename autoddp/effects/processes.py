"""The processes that the script forks, becomes and signals, and its ports: rank 0's, for all."""

from __future__ import annotations

import ctypes
import multiprocessing.process
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, ClassVar

from autoddp.comm.outcome import Outcome
from autoddp.effects.engine import Mode
from autoddp.effects.outward import Outward
from autoddp.effects.ownership import is_ours, users_call
from autoddp.effects.rows import EffectRow, ask, do
from autoddp.effects.running_programs import for_asyncio, plain_world, see
from autoddp.effects.unhurried import Unhurried
from autoddp.patching import Call, patch, stands_for
from autoddp.report import is_users, users_line

FORKED = (
    "os.fork forks rank 0 alone: what the child answers by shared memory or a pipe, other ranks do "
    "not see (a process of multiprocessing is on every rank)"
)
PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class Processes(Outward):
    """The feature that gives the script's process rank 0's number, and rank 0's children."""

    name: ClassVar[str] = "processes"
    without: ClassVar[str] = (
        "every rank forks, sends signals and listens at ports by itself, "
        "and has a number of its own"
    )
    views: ClassVar[tuple[str, ...]] = ("global",)
    rows: ClassVar[
        tuple[EffectRow, ...]
    ] = (  # to children of multiprocessing, each rank has its own
        do(
            "os:kill",
            "os:killpg",
            why="a signal is sent once, by rank 0",
            once=True,
            when=lambda call: not _own_child(call),
        ),
        ask(
            "os:getpgid",
            "os:getsid",
            why="about a process that is rank 0's, rank 0 tells",
            when=lambda call: not _own_child(call),
        ),
    )

    def setup(self, undo: ExitStack) -> None:
        """Have rank 0 tell its number, and its parent's, once."""
        super().setup(undo)
        self.unhurried = Unhurried(self.effects, self.name)
        self.numbers = self.run.group.call("the process", lambda: [os.getpid(), os.getppid()])
        self._kept = ExitStack()

    @patch("os:getpid", "os:getppid", why="the script's process has one number: rank 0's", hot=True)
    def number(self, original: Callable[[], int]) -> Callable[[], int]:
        """Tell rank 0's number without asking it; in a forked child, the child's own."""
        here, users, frame = self.effects.context.in_job, is_users, sys._getframe
        answer = self.numbers[original.__name__ == "getppid"]

        @stands_for(original)
        def number() -> int:
            return answer if users(frame(1).f_code.co_filename) and here() else original()

        return number

    @patch("os:fork", why="a child that the script forks is one: rank 0's")
    def fork_once(self, call: Call) -> Any:
        """Fork on rank 0; the others are told the child's number, and never are the child.

        `os.spawn*` are made of this.
        """
        mode = self._mode()
        if mode is Mode.PASS_THROUGH:
            return call.plain()
        if mode is Mode.SYNCED:
            self.effects.do_on_rank0("os.fork", _nothing)
            if not _becomes_a_program():
                self.run.report.doubt("processes", users_line(), FORKED)
        forked = Outcome(value=0)
        if self.rank == 0 and mode is not Mode.SUPPRESSED:
            forked = Outcome.of(call.wrapped)
            if forked.value == 0:
                self._be_a_child()
                return 0
        return self.unhurried.tell(mode, "os.fork", f"os.fork/{users_line()}", forked.unwrap)

    @patch("os:forkpty", why="a child with a terminal of its own is each rank's, which is said")
    def fork_on_each(self, call: Call) -> Any:
        """Fork on every rank, and say so: the child's terminal is read by a descriptor.

        `pty.spawn` is made of this.
        """
        if self._mode() is not Mode.PASS_THROUGH:
            what = (
                "a child with a terminal of its own is forked by every rank "
                "(os.fork forks one for all)"
            )
            self.run.report.doubt("processes", users_line(), what)
        return call.plain()

    @patch(
        "os:waitpid",
        "os:wait",
        "os:wait3",
        "os:wait4",
        "os:waitid",
        why="how a child of the script ended, rank 0 tells",
    )
    def wait_once(self, call: Call) -> Any:
        """Wait on rank 0; for its children of multiprocessing, each rank waits by itself."""
        mode = self._mode()
        if mode is Mode.PASS_THROUGH or _own_child(call):
            return call.plain()
        name = f"os.{call.wrapped.__name__}"
        answer = self.unhurried.tell(
            mode, name, f"{name}{call.args}{call.kwargs}", lambda: _listed(call.plain())
        )
        see(self.effects)
        return _made(call.wrapped.__name__, answer)

    @patch(
        "socket:socket.bind",
        why="a port that the script listens at is rank 0's; others listen where nobody calls",
    )
    def listen_once(self, call: Call) -> Any:
        """Bind the port on rank 0, elsewhere any that is free; all raise rank 0's error."""
        mode = self.effects.mode()
        address: Any = call.args[0] if call.args else None
        if mode is Mode.PASS_THROUGH or not _names_a_port(call.instance, address):
            return call.plain()
        if mode is Mode.SYNCED and users_call():
            self.effects.do_on_rank0("socket.bind", lambda: call.wrapped(address))
        elif self.rank == 0 and mode is not Mode.SUPPRESSED:
            call.wrapped(address)
        if self.rank or mode is Mode.SUPPRESSED:
            call.wrapped((address[0], 0, *address[2:]))
        return None

    @patch("os:execv", "os:execve", why="rank 0 becomes the other program; the other ranks end")
    def become(self, call: Call) -> Any:
        """Start the program on rank 0, and end the script on all ranks.

        Rank 0 stays to hand the program's exit code to the launcher; nothing of the script happens
        any more.
        """
        mode = self._mode()
        if mode is not Mode.SYNCED:
            with plain_world():
                return call.plain()
        if not call.named:
            return call.plain()  # a TypeError
        process = self.effects.do_on_rank0(
            f"os.{call.wrapped.__name__}", lambda: _started(**call.named), tell=bool
        )
        # `finally` and `atexit` would not run in one process: here they leave no trace
        self._kept.enter_context(self.context.trial())
        raise SystemExit(_code(process) if self.rank == 0 else 0)

    def mode(self, row: EffectRow) -> Mode:
        """Decide like the methods of this feature."""
        return self._mode()

    def _mode(self) -> Mode:
        """Return the mode, which is PASS_THROUGH in a forked child and for asyncio.

        A forked child's children are its own; asyncio's are on every rank.
        """
        return (
            self.effects.users()
            if self.effects.context.in_job() and not for_asyncio()
            else Mode.PASS_THROUGH
        )

    def _be_a_child(self) -> None:
        """Make this process a plain child: all it does is plain, and so is its environment."""
        self.effects.end()
        self._kept.enter_context(plain_world())
        signal.set_wakeup_fd(-1)  # that is how rank 0 tells the launcher of its own signals


def _nothing() -> None:
    """Do nothing: all that counts is that all ranks are here."""


def _becomes_a_program() -> bool:
    """Return whether `os.spawn*` forks: its child tells nothing by memory."""
    frame = sys._getframe(1)
    while frame.f_back is not None and is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    return frame.f_globals.get("__name__") == "os"


def _names_a_port(given: socket.socket, address: Any) -> bool:
    """Return whether a socket is to be bound to a port that others know it by."""
    internet = given.family in (socket.AF_INET, socket.AF_INET6)
    return internet and isinstance(address, tuple) and len(address) > 1 and address[1] != 0


def _own_child(call: Call) -> bool:
    """Return whether the call is about a child of multiprocessing, or the group that it leads."""
    named = call.named
    if named.get("idtype", os.P_PID) not in (os.P_PID, os.P_PGID):
        return False
    number = named.get("pid", named.get("pgid", named.get("id")))
    children: set[Any] = multiprocessing.process._children  # type: ignore[attr-defined]
    pids = {child._popen.pid for child in children if child._popen is not None}
    return any(number in (pid, -pid) for pid in pids)  # below zero it is a group's


def _listed(result: Any) -> Any:
    """Return what a wait returned in a form that JSON can carry."""
    if result is None:
        return None
    return [list(part) if isinstance(part, resource.struct_rusage) else part for part in result]


def _made(name: str, answer: Any) -> Any:
    """Rebuild what the wait called `name` returned from what `_listed` made of it."""
    if answer is None:
        return None
    if name == "waitid":
        return os.waitid_result(answer)
    if name in ("wait3", "wait4"):
        answer[2] = resource.struct_rusage(answer[2])
    return tuple(answer)


def _started(path: Any, argv: Any, env: Any = None) -> Any:
    """Start the program that rank 0 becomes, and that ends when rank 0 does."""
    path = os.fsdecode(path)
    prctl = ctypes.CDLL(None).prctl
    try:
        with plain_world():
            return subprocess.Popen(
                list(argv),
                executable=path if "/" in path else f"./{path}",
                env=env,
                close_fds=False,
                restore_signals=False,
                preexec_fn=lambda: prctl(1, signal.SIGKILL),
            )
    except OSError as error:
        raise OSError(error.errno, error.strerror) from None  # exec names no file


def _code(process: Any) -> int:
    """Wait for the program, pass signals on to it, and return its exit code as a shell tells it."""
    for number in PASSED_ON:
        signal.signal(number, lambda number, frame: process.send_signal(number))
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)  # the terminal sends them to the program, too
    code = int(process.wait())
    return code if code >= 0 else 128 - code
