"""The programs that the script starts run once, on rank 0; all ranks see their status and output.

On a rank above 0 a `Popen` has no process. It is asked as the script asks it, and answers as rank
0's does: in the order of the script on its thread, by the store on other threads.
"""

from __future__ import annotations

import io
import marshal
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from autoddp.comm.outcome import Outcome
from autoddp.comm.place import HERE
from autoddp.comm.world import as_found, without
from autoddp.effects.engine import Mode
from autoddp.effects.outward import Outward
from autoddp.effects.ownership import by_tracker, users_call
from autoddp.effects.program_output import read, regular, see, shared
from autoddp.errors import OutOfReach
from autoddp.patching import Call, patch
from autoddp.report import is_users, users_line

# Libraries whose programs fill a cache that each rank may have.
OWN = ("/torch/_inductor/", "/torch/utils/cpp_extension", "/triton/")
ENDS = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
TICK = 0.005
ALONE = (
    "a program that a thread or a worker process starts is started by every rank; "
    "on the main thread it is started once"
)
BY_ASYNCIO = (
    "asyncio reads a program's pipes by their descriptors: every rank starts the program "
    "(subprocess.run on the main thread starts it once)"
)


class Programs(Outward):
    """The feature that runs a program once; `subprocess.run`, `os.popen` and others use it."""

    name: ClassVar[str] = "programs"
    without: ClassVar[str] = "every rank starts the programs that the script starts"
    views: ClassVar[tuple[str, ...]] = ("global",)

    def setup(self, undo: ExitStack) -> None:
        """Set up with no program started yet."""
        super().setup(undo)
        self._names: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        self._turns: Counter[str] = Counter()  # how often what was asked of a program
        # files that a program writes to, and where it began
        self._written: WeakKeyDictionary[Any, list[tuple[io.FileIO, int]]] = WeakKeyDictionary()

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

        written = [*regular({named["c2pwrite"], named["errwrite"]})]
        process.pid = self._run("subprocess.Popen", start, 0)
        self._written[process] = written
        if self.rank:
            process._close_pipe_fds(*(named[end] for end in ENDS))
            process.returncode = None if process.pid else 0
            if process.stdin is not None:  # what is written goes nowhere, and no pipe fills
                with self.context.internal(), open(os.devnull, "wb") as nowhere:
                    os.dup2(nowhere.fileno(), process.stdin.fileno())
        self._turns["programs"] += 1
        name = self._names[process] = f"programs/{self._turns['programs']}"
        for stream in ("stdout", "stderr"):
            if (pipe := getattr(process, stream)) is not None:
                setattr(
                    process,
                    stream,
                    shared(pipe, partial(self.ask, "pipe.read", f"{name}/{stream}"), self.effects),
                )
        return None

    @patch(
        "subprocess:Popen.poll",
        "subprocess:Popen.wait",
        "subprocess:Popen.communicate",
        "subprocess:Popen.send_signal",
        why="whether a program has ended, and what it printed, rank 0 tells",
    )
    def ask_once(self, call: Call) -> Any:
        """Ask rank 0's process; `terminate`, `kill` and leaving a `with` call these, too."""
        process, what = call.instance, call.wrapped.__name__
        if process not in self._names:
            return call.plain()
        if self.rank and self._ends():
            return process.returncode  # each rank ends by itself

        def asked() -> bytes:
            try:
                value, late = call.plain(), None
            except subprocess.TimeoutExpired as error:
                value, late = None, (error.timeout, error.output, error.stderr)
            return marshal.dumps((process.returncode, value, late))

        answer = self.ask(f"Popen.{what}", f"{self._names[process]}/{what}", asked)
        process.returncode, value, late = marshal.loads(answer)
        if process.returncode is not None:
            self._bring(process)
            see(self.effects)
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

        def run() -> Any:
            with as_found(HERE.given):
                return call.plain()

        status = self._run("os.system", run, 0)
        see(self.effects)
        return status

    @patch(
        "asyncio.unix_events:_UnixSubprocessTransport._start",
        why="what asyncio starts, every rank starts, which is said: its loop reads pipes",
    )
    def start_on_each(self, call: Call) -> Any:
        """Start the program on every rank, and say so."""
        if self.effects.mode() is Mode.SYNCED:
            self.run.report.doubt("programs", users_line(), BY_ASYNCIO)
        with self.context.internal():
            return call.plain()

    def _starts_for_all(self) -> bool:
        """Return whether rank 0 starts a program for all; say so if every rank does by itself."""
        mode = self.effects.mode()
        if mode is Mode.SYNCED:
            return not (_compiles() or by_tracker())
        if self._ends():
            return True
        if (mode is Mode.UNSYNCED or self.effects.in_forked_child()) and users_call(
            2, (subprocess.__file__,)
        ):
            self.run.report.doubt("programs", users_line(), ALONE)
        return False

    def _ends(self) -> bool:
        """Return whether ranks come here by themselves: at the end, or when objects are freed."""
        return self.context.ending or self.context.collecting or self.context.over

    def _run(self, what: str, act: Callable[[], Any], without_one: Any) -> Any:
        """Start a program on rank 0, once all ranks are here, or at the end by itself."""
        if self._ends():
            return act() if self.rank == 0 else without_one
        return self.effects.do_on_rank0(what, act, tell=lambda answer: answer)

    def ask(self, what: str, name: str, act: Callable[[], Any]) -> Any:
        """Return what `act` answers on rank 0: bytes, or what JSON can carry.

        Raises:
            OutOfReach: Rank 0 cannot be asked here.
        """
        mode = self.effects.mode()
        if mode is Mode.SYNCED:
            return self.effects.ask_rank0(what, act)
        if mode is Mode.UNSYNCED and self.context.in_job() and not self._ends():
            self._turns[name] += 1
            return self._ask_by_store(f"{name}/{self._turns[name]}", act)
        if self.rank == 0:
            return act()
        raise _out_of_reach(what)

    def _ask_by_store(self, key: str, act: Callable[[], Any]) -> Any:
        """Return rank 0's answer in a thread, without a call that blocks the store for others."""
        store = self.effects.group.store
        if self.rank == 0:
            with self.context.internal():
                outcome = Outcome.of(act)
            store.set(key, outcome.to_bytes())  # type: ignore[arg-type]  # bytes do
            return outcome.unwrap()
        while not store.check([key]):
            if self._ends():
                raise _out_of_reach("a thread")
            time.sleep(TICK)
        answer = store.get(key)
        if store.add(f"{key}/read", 1) == self.effects.group.size - 1:
            store.delete_key(key)
            store.delete_key(f"{key}/read")
        return Outcome.from_bytes(answer).unwrap()

    def _bring(self, process: Any) -> None:
        """Write on the other ranks what a program wrote on rank 0 to files that are still open."""
        if self.effects.mode() is not Mode.SYNCED:
            return
        for file, start in self._written.pop(process, ()):
            found = partial(read, file.fileno(), start)
            body = self.effects.ask_rank0("what a program wrote", found)
            with self.context.internal(), file:
                if self.rank:
                    file.write(body)


def _out_of_reach(what: str) -> OutOfReach:
    return OutOfReach(
        f"{what}: the program is rank 0's, which cannot be asked here (in a data set's fetch, in a "
        "process of this rank's own, or at the end); do it outside of it"
    )


def _compiles() -> bool:
    """Return whether a library of `OWN` starts the program."""
    frame: Any = sys._getframe(1)
    while frame is not None and not is_users(file := frame.f_code.co_filename):
        if any(part in file for part in OWN):
            return True
        frame = frame.f_back
    return False
