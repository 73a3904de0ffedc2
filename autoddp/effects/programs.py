"""Programs that the script starts run once, on rank 0; all ranks get their status and output.

On a rank above 0 a `Popen` has no process: its methods and pipes return what rank 0's return.
What `os.fork`, `os.exec*` and asyncio start runs on every rank, and a line reports that.
"""

from __future__ import annotations

import fcntl
import io
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, ClassVar
from weakref import WeakSet

from autoddp.effects.effect_feature import EffectFeature, EffectRow, each
from autoddp.effects.ownership import users_call, whose
from autoddp.effects.pipes import shared
from autoddp.effects.who_acts import Mode
from autoddp.patching import Call, patch, stands_for
from autoddp.report import is_users, users_line

ENDS = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
READ_BACK = "every rank runs it, as it writes to an open file; capture_output=True runs it once"
APART = "every rank does this; subprocess.run on the main thread runs a program once, on rank 0"
callers = partial(whose, subprocess.__file__)
BY_DESCRIPTOR = "a program's pipe has a descriptor on rank 0 only; use its read methods"


class Programs(EffectFeature):
    """The feature that runs a program once, by `Popen` or a function that uses it."""

    name: ClassVar[str] = "programs"
    without: ClassVar[str] = "every rank runs the programs that the script starts"
    views: ClassVar[tuple[str, ...]] = ("global",)
    rows: ClassVar[tuple[EffectRow, ...]] = (
        each(
            (
                "asyncio.unix_events:_UnixSubprocessTransport._start",
                # `os.spawn*` and `pty.spawn` call these
                *("os:fork", "os:forkpty", "os:posix_spawn", "os:posix_spawnp"),
                *("os:execv", "os:execve"),
            ),
            why=APART,
        ),
    )

    def setup(self, undo: ExitStack) -> None:
        """Get the process ids of rank 0 and its parent."""
        super().setup(undo)
        self._started: WeakSet[Any] = WeakSet()  # programs that rank 0 runs for all ranks
        self.numbers = self.run.group.call("the process", lambda: [os.getpid(), os.getppid()])

    @patch("os:getpid", "os:getppid", why="all ranks get the process id of rank 0", hot=True)
    def number(self, original: Callable[[], int]) -> Callable[[], int]:
        """Make a `getpid` that returns rank 0's process id, and in a forked child the child's."""
        in_job, users, frame = self.context.in_job, is_users, sys._getframe
        answer = self.numbers[original.__name__ == "getppid"]

        @stands_for(original)
        def number() -> int:
            return answer if users(frame(1).f_code.co_filename) and in_job() else original()

        return number

    @patch(
        "subprocess:Popen._execute_child",
        why="rank 0 starts the program for all ranks",
    )
    def start_once(self, call: Call) -> Any:
        """Start the program on rank 0, which also reads its pipes for all ranks."""
        process, named = call.instance, call.named
        if not self._starts_for_all(*(named[end] for end in ("c2pwrite", "errwrite"))):
            return call.plain()

        def start() -> int:
            # without the variables that are hidden from the script
            call.changed(env=os.environ if named.get("env") is None else named["env"])
            return int(process.pid)

        process.pid = self._run("subprocess.Popen", start)
        self._started.add(process)
        if self.rank:
            process._close_pipe_fds(*(named[end] for end in ENDS))
            process.returncode = None if process.pid else 0
            if process.stdin is not None:  # discard what is written, so that no pipe fills
                with self.context.internal(), open(os.devnull, "wb") as nowhere:
                    os.dup2(nowhere.fileno(), process.stdin.fileno())
        for stream in ("stdout", "stderr"):
            if (pipe := getattr(process, stream)) is not None:
                number = partial(self._descriptor, pipe.fileno())
                setattr(
                    process, stream, shared(pipe, partial(self.of_rank0, "read"), fileno=number)
                )
        return None

    @patch(
        *(f"subprocess:Popen.{what}" for what in ("poll", "wait", "communicate", "send_signal")),
        why="all ranks get rank 0's answer on a program's status and output",
    )
    def ask_once(self, call: Call) -> Any:
        """Call the method on rank 0's process; `terminate`, `kill` and `with` use these, too."""
        process, what = call.instance, call.wrapped.__name__
        if process not in self._started:
            return call.plain()
        if self.rank and self._ends():
            return process.returncode  # ranks end without synchronization

        def answer() -> tuple[Any, Any]:
            value = call.plain()
            return process.returncode, value

        process.returncode, value = self.of_rank0(f"Popen.{what}", answer)
        if process.returncode is not None:
            self._refresh()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if what == "communicate" and pipe is not None:
                pipe.close()
        return value

    @patch("os:system", why="rank 0 starts the program for all ranks")
    def run_once(self, call: Call) -> Any:
        """Run the program on rank 0, and return its exit status on all ranks."""
        if not self._starts_for_all():
            return call.plain()
        status = self._run("os.system", call.plain)
        self._refresh()
        return status

    def _descriptor(self, number: int) -> int:
        """Return this rank's descriptor of a pipe, if another program uses it; else raise."""
        inside = self.effects.mode() is Mode.PASS_THROUGH
        if not inside and sys._getframe(1).f_code.co_filename != subprocess.__file__:
            raise io.UnsupportedOperation(BY_DESCRIPTOR)
        return number

    def _starts_for_all(self, *outputs: int) -> bool:
        """Return whether rank 0 starts a program for all; report it if every rank starts one.

        Every rank starts one if its output is a file that the script can read by the descriptor.
        """
        mode, reads_back = self.effects.mode(by=callers), any(map(_reads_back, outputs))
        if self._ends() or (mode is Mode.SYNCED and not reads_back):
            return True
        if (reads_back or mode is Mode.UNSYNCED) and users_call((subprocess.__file__,)):
            what = f"subprocess.Popen: {READ_BACK if reads_back else APART}"
            self.run.report.doubt("programs", users_line(), what)
        return False

    def _ends(self) -> bool:
        """Return whether ranks are not in a common order: at the end, or in finalizers."""
        return self.context.ending or self.context.collecting or self.context.over

    def _run(self, what: str, act: Callable[[], int]) -> int:
        """Start a program on rank 0 once all ranks have arrived, without waiting at the end."""
        if self._ends():
            return act() if self.rank == 0 else 0
        return int(self.effects.do_on_rank0(what, act))

    def _refresh(self) -> None:
        """Drop this rank's copies of files that a program may have written on rank 0."""
        if self.rank and self.context.in_job():
            with self.context.internal():
                self.effects.overlay.refresh()


def _reads_back(number: int) -> bool:
    """Return whether a descriptor is that of a file which the script can read through it."""
    if number <= 2 or not stat.S_ISREG(os.fstat(number).st_mode):
        return False
    return fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
