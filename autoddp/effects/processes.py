"""The script's process has rank 0's number; what it forks, becomes or listens at is each rank's."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, ClassVar

from autoddp.effects.outward import Outward
from autoddp.effects.rows import EffectRow, each
from autoddp.patching import Call, patch, stands_for
from autoddp.report import is_users

FORKED = "every rank starts a child of its own; subprocess starts a program once"
BECOMES = "every rank becomes that program; subprocess.run runs it once"
LISTENS = (
    "every rank listens by itself, and on one machine the first alone gets the port: "
    "guard it by autoddp.rank() == 0"
)


def _listens(call: Call) -> bool:
    """Return whether a socket is bound to a port of the script's choice."""
    internet = call.instance.family in (socket.AF_INET, socket.AF_INET6)
    return internet and bool(call.args and call.args[0][1])


class Processes(Outward):
    """The feature that gives the script's process one number, and says what every rank does."""

    name: ClassVar[str] = "processes"
    without: ClassVar[str] = "every rank's process has a number of its own"
    views: ClassVar[tuple[str, ...]] = ("global",)
    rows: ClassVar[tuple[EffectRow, ...]] = (
        # `os.spawn*` and `pty.spawn` are made of these
        each(("os:fork", "os:forkpty", "os:posix_spawn", "os:posix_spawnp"), why=FORKED),
        each(("os:execv", "os:execve"), why=BECOMES),
        each(("socket:socket.bind",), why=LISTENS, when=_listens),
    )

    def setup(self, undo: ExitStack) -> None:
        """Have rank 0 tell its number, and its parent's, once."""
        super().setup(undo)
        self.numbers = self.run.group.call("the process", lambda: [os.getpid(), os.getppid()])

    def serve(self, call: Call) -> Any:
        """Serve a row as any other; what a child is sent is no news for the launcher."""
        made = super().serve(call)
        if "fork" in call.target and os.getpid() != self.context.process:
            signal.set_wakeup_fd(-1)  # that is how rank 0 tells the launcher of its own signals
        return made

    @patch("os:getpid", "os:getppid", why="the script's process has one number: rank 0's", hot=True)
    def number(self, original: Callable[[], int]) -> Callable[[], int]:
        """Tell rank 0's number without asking it; in a forked child, the child's own."""
        here, users, frame = self.context.in_job, is_users, sys._getframe
        answer = self.numbers[original.__name__ == "getppid"]

        @stands_for(original)
        def number() -> int:
            return answer if users(frame(1).f_code.co_filename) and here() else original()

        return number
