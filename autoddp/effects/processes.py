"""The script's process has rank 0's number, and rank 0 signals; what it forks is each rank's."""

from __future__ import annotations

import multiprocessing.process
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, ClassVar

from autoddp.comm.place import HERE
from autoddp.comm.world import as_found
from autoddp.effects.engine import Mode
from autoddp.effects.outward import Outward
from autoddp.effects.ownership import users_call
from autoddp.errors import RankEnded
from autoddp.patching import Call, patch, stands_for
from autoddp.report import is_users, users_line

FORKED = "{} starts a child of every rank; subprocess starts a program once"


class Processes(Outward):
    """The feature that gives the script's process one number, and has rank 0 signal for all."""

    name: ClassVar[str] = "processes"
    without: ClassVar[str] = (
        "every rank sends signals and listens at ports by itself, and has a number of its own"
    )
    views: ClassVar[tuple[str, ...]] = ("global",)

    def setup(self, undo: ExitStack) -> None:
        """Have rank 0 tell its number, and its parent's, once."""
        super().setup(undo)
        self.numbers = self.run.group.call("the process", lambda: [os.getpid(), os.getppid()])
        self._forked: set[int] = set()

    @patch("os:getpid", "os:getppid", why="the script's process has one number: rank 0's", hot=True)
    def number(self, original: Callable[[], int]) -> Callable[[], int]:
        """Tell rank 0's number without asking it; in a forked child, the child's own."""
        here, users, frame = self.context.in_job, is_users, sys._getframe
        answer = self.numbers[original.__name__ == "getppid"]

        @stands_for(original)
        def number() -> int:
            return answer if users(frame(1).f_code.co_filename) and here() else original()

        return number

    @patch(
        "os:kill",
        "os:killpg",
        "os:getpgid",
        "os:getsid",
        why="the numbers that the script knows are rank 0's: rank 0 signals, and tells of them",
    )
    def reach_once(self, call: Call) -> Any:
        """Make the call on rank 0; about a child that each rank has, and for a library, here."""
        mode, number = self.effects.mode(), abs(next(iter(call.named.values()), 0))
        children: set[Any] = multiprocessing.process._children  # type: ignore[attr-defined]
        own = self._forked | {child.pid for child in children}
        if mode is Mode.PASS_THROUGH or number in own or not users_call():
            return call.plain()
        if mode is Mode.SYNCED:
            return self.effects.do_on_rank0(call.name, call.plain, tell=lambda answer: answer)
        return None if self.rank else call.plain()

    @patch(
        "os:fork",
        "os:forkpty",
        "os:posix_spawn",
        "os:posix_spawnp",
        why="a child that the script forks is every rank's, which is said",
    )
    def fork_on_each(self, call: Call) -> Any:
        """Start the child, and say so; `os.spawn*` and `pty.spawn` are made of this."""
        if self.effects.mode() not in (Mode.SYNCED, Mode.UNSYNCED) or not users_call():
            return call.plain()
        self.run.report.doubt(
            "processes", users_line(), FORKED.format(call.target.replace(":", "."))
        )
        found = call.plain()
        if os.getpid() != self.context.process:
            signal.set_wakeup_fd(-1)  # that is how rank 0 tells the launcher of its own signals
        self._forked.add(found if isinstance(found, int) else found[0])
        return found

    @patch("os:execv", "os:execve", why="rank 0 becomes the other program; the other ranks end")
    def become(self, call: Call) -> Any:
        """Replace rank 0's process by the program once all ranks are here; the others end."""

        def execute() -> Any:
            with as_found(HERE.given):
                return call.plain()

        if self.effects.mode() is not Mode.SYNCED:
            return execute()
        try:
            return self.effects.do_on_rank0(call.name, execute)
        except RankEnded:
            os._exit(0)  # no `finally` and no `atexit`, as in rank 0's process

    @patch(
        "socket:socket.bind",
        why="a port that the script listens at is rank 0's; others listen where nobody calls",
    )
    def listen_once(self, call: Call) -> Any:
        """Bind the port on rank 0, elsewhere any that is free."""
        internet = call.instance.family in (socket.AF_INET, socket.AF_INET6)
        address: Any = call.args[0] if call.args else None
        if self.rank and internet and self.effects.mode() is not Mode.PASS_THROUGH:
            return call.wrapped((address[0], 0, *address[2:]))
        return call.plain()
