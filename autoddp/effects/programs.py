"""The programs that the script starts run once, on rank 0; all ranks see their status and output.

On a rank above 0 a `Popen` has no process. It is asked as the script asks it, and answers as rank
0's does, where all ranks ask: on the script's thread.
"""

from __future__ import annotations

import io
import marshal
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from autoddp.comm.place import HERE
from autoddp.comm.world import as_found, without
from autoddp.effects.engine import Mode
from autoddp.effects.outward import Outward
from autoddp.effects.ownership import by_tracker, users_call, within
from autoddp.effects.pipes import shared
from autoddp.effects.rows import EffectRow, each
from autoddp.errors import OutOfReach
from autoddp.patching import Call, patch
from autoddp.report import users_line

# Libraries whose programs fill a cache that each rank may have.
OWN = ("/torch/_inductor/", "/torch/utils/cpp_extension", "/triton/")
ENDS = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
ALONE = "every rank starts what a thread or a worker process starts; the main thread starts it once"
BY_ASYNCIO = "every rank starts the program; subprocess.run on the main thread starts it once"
BY_DESCRIPTOR = "a program's pipe has its descriptor on rank 0 alone; read it by its methods"


class Programs(Outward):
    """The feature that runs a program once; `subprocess.run`, `os.popen` and others use it."""

    name: ClassVar[str] = "programs"
    without: ClassVar[str] = "every rank starts the programs that the script starts"
    views: ClassVar[tuple[str, ...]] = ("global",)
    rows: ClassVar[tuple[EffectRow, ...]] = (
        each(("asyncio.unix_events:_UnixSubprocessTransport._start",), why=BY_ASYNCIO),
    )

    def setup(self, undo: ExitStack) -> None:
        """Set up with no program started yet."""
        super().setup(undo)
        # by program: the regular files that it writes to, and where it began
        self._files: WeakKeyDictionary[Any, list[tuple[io.FileIO, int]]] = WeakKeyDictionary()

    @patch(
        "subprocess:Popen._execute_child",
        why="a program that the script starts runs once: rank 0 starts it",
    )
    def start_once(self, call: Call) -> Any:
        """Start the program on rank 0, and read its pipes there for all."""
        process, named = call.instance, call.named
        if not self._starts_for_all():
            return call.plain()

        def start() -> int:
            env = named.get("env")
            with as_found(HERE.given):
                call.plain() if env is None else call.changed(env=without(env, HERE.given))
            return int(process.pid)

        files = _regular({named["c2pwrite"], named["errwrite"]})
        process.pid = self._run("subprocess.Popen", start)
        self._files[process] = files
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
        why="whether a program has ended, and what it printed, rank 0 tells",
    )
    def ask_once(self, call: Call) -> Any:
        """Ask rank 0's process; `terminate`, `kill` and leaving a `with` call these, too."""
        process, what = call.instance, call.wrapped.__name__
        if process not in self._files:
            return call.plain()
        if self.rank and self._ends():
            return process.returncode  # each rank ends by itself

        def asked() -> bytes:
            try:
                value, late = call.plain(), None
            except subprocess.TimeoutExpired as error:
                value, late = None, (error.timeout, error.output, error.stderr)
            return marshal.dumps((process.returncode, value, late))

        process.returncode, value, late = marshal.loads(self.ask(f"Popen.{what}", asked))
        if process.returncode is not None:
            self._bring(self._files[process])
        if late is not None:
            raise subprocess.TimeoutExpired(process.args, *late)
        for pipe in (process.stdin, process.stdout, process.stderr):
            if what == "communicate" and pipe is not None:
                pipe.close()
        return value

    @patch("os:system", why="a program that the script starts runs once: rank 0 starts it")
    def run_once(self, call: Call) -> Any:
        """Run the program on rank 0; its exit status is for all ranks."""
        if not self._starts_for_all():
            return call.plain()
        with as_found(HERE.given):
            status = self._run("os.system", call.plain)
        self._bring([])
        return status

    def _descriptor(self, number: int) -> int:
        """Return this rank's descriptor of a pipe, for another program alone."""
        inside = self.effects.mode() is Mode.PASS_THROUGH
        if not inside and sys._getframe(1).f_code.co_filename != subprocess.__file__:
            raise io.UnsupportedOperation(BY_DESCRIPTOR)
        return number

    def ask(self, what: str, act: Callable[[], Any]) -> Any:
        """Return what `act` answers on rank 0: bytes, or what JSON can carry."""
        if self.effects.mode() is Mode.SYNCED:
            return self.effects.ask_rank0(what, act)
        if self.rank:
            raise OutOfReach(
                f"{what}: the program is rank 0's, which cannot be asked here (in a thread, a data "
                "set's fetch, a process of this rank's own, or at the end); do it outside of it"
            )
        return act()

    def _starts_for_all(self) -> bool:
        """Return whether rank 0 starts a program for all; say so if every rank does by itself."""
        mode = self.effects.mode()
        if mode is Mode.SYNCED:
            return not (within(OWN) or by_tracker())
        if self._ends():
            return True
        apart = mode is Mode.UNSYNCED or self.effects.in_forked_child()
        if apart and users_call(2, (subprocess.__file__,)):
            self.run.report.doubt("programs", users_line(), ALONE)
        return False

    def _ends(self) -> bool:
        """Return whether ranks come here by themselves: at the end, or when objects are freed."""
        return self.context.ending or self.context.collecting or self.context.over

    def _run(self, what: str, act: Callable[[], int]) -> int:
        """Start a program on rank 0, once all ranks are here, or at the end by itself."""
        if self._ends():
            return act() if self.rank == 0 else 0
        return int(self.effects.do_on_rank0(what, act, tell=lambda answer: answer))

    def _bring(self, files: list[tuple[io.FileIO, int]]) -> None:
        """Have this rank find what a program has written: on the disk, and in its open `files`."""
        if self.effects.mode() is Mode.SYNCED:
            for file, start in files:
                written = partial(_read, file.fileno(), start)
                body = self.effects.ask_rank0("what a program wrote", written)
                with self.context.internal(), file:
                    if self.rank:
                        file.write(body)
            files.clear()
        if self.rank and self.context.in_job():
            with self.context.internal():
                self.effects.overlay.settle()


def _regular(numbers: set[int]) -> list[tuple[io.FileIO, int]]:
    """Open regular files among descriptors once more, and tell the places where they are."""
    return [
        (io.FileIO(os.dup(number), "w"), os.lseek(number, 0, os.SEEK_CUR))
        for number in sorted(numbers)
        if number > 2 and stat.S_ISREG(os.fstat(number).st_mode)
    ]


def _read(number: int, start: int) -> bytes:
    """Return what is in an open file, which may be open for writing alone, from `start` on."""
    with open(f"/proc/self/fd/{number}", "rb") as file:
        file.seek(start)
        return file.read()
