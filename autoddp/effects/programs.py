"""The programs that the script starts run once, on rank 0; all ranks see their status and output.

On a rank above 0 a `Popen` has no process: its methods and pipes return what rank 0's return.
Every rank runs what `os.fork`, `os.exec*` and asyncio start, and a line reports that.
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

from autoddp.effects.engine import Mode
from autoddp.effects.outward import EffectRow, Outward, each
from autoddp.effects.ownership import by_tracker, users_call, within
from autoddp.effects.pipes import shared
from autoddp.errors import OutOfReach
from autoddp.patching import Call, patch, stands_for
from autoddp.report import is_users, users_line

# Libraries whose programs fill a cache that each rank may have.
OWN = ("/torch/_inductor/", "/torch/utils/cpp_extension", "/triton/")
ENDS = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
READ_BACK = "every rank runs what writes to an open file; capture_output=True runs it once"
APART = "every rank does it for itself; subprocess.run on the main thread starts a program once"
BY_DESCRIPTOR = "a program's pipe has its descriptor on rank 0 alone; read it by its methods"


class Programs(Outward):
    """The feature that runs a program once; `subprocess.run`, `os.popen` and others use it."""

    name: ClassVar[str] = "programs"
    without: ClassVar[str] = "every rank starts the programs that the script starts"
    views: ClassVar[tuple[str, ...]] = ("global",)
    rows: ClassVar[tuple[EffectRow, ...]] = (
        each(
            (
                "asyncio.unix_events:_UnixSubprocessTransport._start",
                # `os.spawn*` and `pty.spawn` are made of these
                *("os:fork", "os:forkpty", "os:posix_spawn", "os:posix_spawnp"),
                *("os:execv", "os:execve"),
            ),
            why=APART,
        ),
    )

    def setup(self, undo: ExitStack) -> None:
        """Ask rank 0 once for its process number, and its parent's."""
        super().setup(undo)
        self._started: WeakSet[Any] = WeakSet()  # the programs that rank 0 runs for all
        self.numbers = self.run.group.call("the process", lambda: [os.getpid(), os.getppid()])

    @patch("os:getpid", "os:getppid", why="the script's process has one number: rank 0's", hot=True)
    def number(self, original: Callable[[], int]) -> Callable[[], int]:
        """Return rank 0's number without asking it; in a forked child, the child's own."""
        here, users, frame = self.context.in_job, is_users, sys._getframe
        answer = self.numbers[original.__name__ == "getppid"]

        @stands_for(original)
        def number() -> int:
            return answer if users(frame(1).f_code.co_filename) and here() else original()

        return number

    @patch(
        "subprocess:Popen._execute_child",
        why="a program that the script starts runs once: rank 0 starts it",
    )
    def start_once(self, call: Call) -> Any:
        """Start the program on rank 0, and read its pipes there for all."""
        process, named = call.instance, call.named
        if not self._starts_for_all(*(named[end] for end in ("c2pwrite", "errwrite"))):
            return call.plain()

        def start() -> int:
            # without what is hidden from the script in `os.environ`
            call.changed(env=os.environ if named.get("env") is None else named["env"])
            return int(process.pid)

        process.pid = self._run("subprocess.Popen", start)
        self._started.add(process)
        if self.rank:
            process._close_pipe_fds(*(named[end] for end in ENDS))
            process.returncode = None if process.pid else 0
            if process.stdin is not None:  # what is written goes nowhere, and no pipe fills
                with self.context.internal(), open(os.devnull, "wb") as nowhere:
                    os.dup2(nowhere.fileno(), process.stdin.fileno())
        for stream in ("stdout", "stderr"):
            if (pipe := getattr(process, stream)) is not None:
                number = partial(self._descriptor, pipe.fileno())
                setattr(process, stream, shared(pipe, partial(self.ask, "read"), fileno=number))
        return None

    @patch(
        *(f"subprocess:Popen.{what}" for what in ("poll", "wait", "communicate", "send_signal")),
        why="whether a program has ended, and what it printed, is rank 0's answer",
    )
    def ask_once(self, call: Call) -> Any:
        """Ask rank 0's process; `terminate`, `kill` and leaving a `with` call these, too."""
        process, what = call.instance, call.wrapped.__name__
        if process not in self._started:
            return call.plain()
        if self.rank and self._ends():
            return process.returncode  # each rank ends alone

        def asked() -> tuple[Any, Any]:
            value = call.plain()
            return process.returncode, value

        process.returncode, value = self.ask(f"Popen.{what}", asked)
        if process.returncode is not None:
            self._refresh()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if what == "communicate" and pipe is not None:
                pipe.close()
        return value

    @patch("os:system", why="a program that the script starts runs once: rank 0 starts it")
    def run_once(self, call: Call) -> Any:
        """Run the program on rank 0; its exit status is for all ranks."""
        if not self._starts_for_all():
            return call.plain()
        status = self._run("os.system", call.plain)
        self._refresh()
        return status

    def _descriptor(self, number: int) -> int:
        """Return this rank's descriptor of a pipe, for another program alone."""
        inside = self.effects.mode() is Mode.PASS_THROUGH
        if not inside and sys._getframe(1).f_code.co_filename != subprocess.__file__:
            raise io.UnsupportedOperation(BY_DESCRIPTOR)
        return number

    def ask(self, what: str, act: Callable[[], Any]) -> Any:
        """Return what `act` returns on rank 0."""
        if self.effects.mode() is Mode.SYNCED:
            return self.effects.ask_rank0(what, act)
        if self.rank:
            raise OutOfReach(
                f"{what}: the program is rank 0's, which cannot be asked here (in a thread, a data "
                "set's fetch, a process of this rank's own, or at the end); do it outside of it"
            )
        return act()

    def _starts_for_all(self, *outputs: int) -> bool:
        """Return whether rank 0 starts a program for all; report if every rank starts its own.

        Every rank does if the program writes to a file that the script can read by its descriptor.
        """
        mode, back = self.effects.mode(), any(map(_reads_back, outputs))
        if mode is Mode.SYNCED and not back:
            return not (within(OWN) or by_tracker())
        if self._ends():
            return True
        apart = back or mode is Mode.UNSYNCED or self.effects.in_forked_child()
        if apart and users_call(2, (subprocess.__file__,)):
            what = f"subprocess.Popen: {READ_BACK if back else APART}"
            self.run.report.doubt("programs", users_line(), what)
        return False

    def _ends(self) -> bool:
        """Return whether ranks arrive here in no common order: at the end, or in finalizers."""
        return self.context.ending or self.context.collecting or self.context.over

    def _run(self, what: str, act: Callable[[], int]) -> int:
        """Start a program on rank 0, once all ranks have arrived, or at the end alone."""
        if self._ends():
            return act() if self.rank == 0 else 0
        return int(self.effects.do_on_rank0(what, act))

    def _refresh(self) -> None:
        """Drop this rank's copies of files that a program has written on rank 0."""
        if self.rank and self.context.in_job():
            with self.context.internal():
                self.effects.overlay.refresh()


def _reads_back(number: int) -> bool:
    """Return whether a descriptor is that of a file which the script can read back by it."""
    if number <= 2 or not stat.S_ISREG(os.fstat(number).st_mode):
        return False
    return fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
