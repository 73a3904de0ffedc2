"""Processes that the script starts itself run on rank 0 only; other ranks have stand-ins.

What the script then gets from a process, or by anything that it shares with one, is rank 0's: on
the script's thread in the order of all calls, on another thread in the order of the calls on one
object. Pools, executors and data loaders start processes of their own on each rank.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import thread
from contextlib import ExitStack
from multiprocessing import util
from typing import Any
from weakref import WeakKeyDictionary

import torch

from autoddp.effects.effect_feature import EffectFeature
from autoddp.effects.ownership import caller, serves
from autoddp.effects.shared_memory import SharedMemory
from autoddp.effects.threads import Threads
from autoddp.effects.who_acts import Mode
from autoddp.errors import OutOfReach
from autoddp.patching import Call, patch

(PACKAGE,) = multiprocessing.__path__
# Files that do for the script what it asks, and own no processes, unlike those of pools.
THROUGH = (
    *(f"{PACKAGE}/{name}.py" for name in ("context", "process", "synchronize", "sharedctypes")),
    *(f"{PACKAGE}/{name}.py" for name in ("shared_memory", "popen_fork", "popen_forkserver")),
    *(thread.__file__, f"{PACKAGE}/popen_spawn_posix.py"),
    os.path.dirname(torch.__file__) + "/multiprocessing/",
)
POPEN = "multiprocessing.popen_"
ELSEWHERE = (
    "{}: the processes of the script run on rank 0, which other ranks cannot ask from a data set's "
    "fetch; start them in the data set, or read them on the main thread"
)


class Processes(EffectFeature):
    """The part of `Children` that starts processes and asks about them.

    Attributes:
        alone: Whether rank 0 has started a process that other ranks lack.
        numbers: Objects by which the script talks to its processes, and these; alike on all ranks.
        memory: What the script shares with them.
    """

    def setup(self, undo: ExitStack) -> None:
        """Begin without processes."""
        super().setup(undo)
        self.alone, self.memory, self._count = False, SharedMemory(), 0
        self.numbers: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._threads = Threads(self.run.group)
        undo.callback(self._threads.close)

    def by_library(self, through: tuple[str, ...] = THROUGH) -> bool:
        """Return whether a pool, a data loader or the like makes a call for itself."""
        return serves(caller(through, pools=True))

    def together(self) -> bool:
        """Return whether the script makes this call on all ranks, in one order."""
        return self.effects.mode() is Mode.SYNCED and not self.by_library()

    def number(self, thing: Any) -> None:
        """Give an object a number, by which other threads than the script's find it."""
        self._count += 1
        self.numbers[thing] = self._count

    def rank0s(self, what: str, thing: Any, act: Callable[[], Any]) -> Any:
        """Return what `act` returns on rank 0, which may wait in it.

        Raises:
            OutOfReach: This is a data set's fetch on another rank.
        """
        context = self.context
        if self.effects.mode() is Mode.SYNCED:
            value, changes = self.effects.ask_rank0(what, lambda: (act(), self.memory.changes()))
            if self.rank:
                self.memory.follow(changes)
            return value
        ends = context.ending or context.over
        if not (ends or context.on_script_thread() or context.is_internal_elsewhere()):
            with context.internal():
                return self._threads.follow(self.numbers[thing], act)
        if self.rank == 0:
            return act()
        if ends or context.collecting:
            return None  # what it still does is of no use to anybody
        raise OutOfReach(ELSEWHERE.format(what))

    @patch(
        *(f"{POPEN}{kind}:Popen._launch" for kind in ("fork", "spawn_posix", "forkserver")),
        why="the processes that the script starts run once, on rank 0",
    )
    def launch(self, call: Call) -> Any:
        """Start a process on rank 0, and on others only its stand-in, of the same number."""
        process = call.instance
        if not self.together():
            return call.plain()

        def start() -> int:
            call.plain()
            return int(process.pid)

        process.pid = self.effects.do_on_rank0("Process.start", start)
        self.number(process)
        if self.rank:
            ends = os.pipe()  # of which nothing comes
            process.sentinel = ends[0]
            process.finalizer = util.Finalize(process, util.close_fds, ends)  # type: ignore[attr-defined]
        if not self.alone:
            self.alone = True
            self.part()
        return None

    def part(self) -> None:
        """Do what is to be done when rank 0 has started the first process."""

    @patch(
        *(f"{POPEN}fork:Popen.{name}" for name in ("poll", "wait", "_send_signal")),
        f"{POPEN}forkserver:Popen.poll",
        why="all ranks get rank 0's answer on a process",
    )
    def ask(self, call: Call) -> Any:
        """Ask or signal rank 0's process, for `join`, `is_alive`, `exitcode` and `terminate`."""
        process = call.instance
        if process not in self.numbers or not self.context.is_rank():
            return call.plain()
        if self.rank and self.context.passes_through():
            return process.returncode

        def answer() -> tuple[Any, Any]:
            value = call.plain()
            return value, process.returncode

        value, process.returncode = self.rank0s(call.name, process, answer) or (0, 0)
        return value

    @patch(
        *("multiprocessing.process:_cleanup", "multiprocessing.process:active_children"),
        *("multiprocessing.context:BaseContext.active_children", "multiprocessing:active_children"),
        why="all ranks have the same processes",
    )
    def list(self, call: Call) -> Any:
        """Return rank 0's processes that run, and this rank's own ones, as those of pools."""
        with self.context.internal():
            found = call.plain()
        if found is None or not self.together():
            return found
        by_number = {self.numbers.get(process._popen): process for process in found}
        own = [process for process in found if process._popen not in self.numbers]
        theirs = self.effects.ask_rank0(call.name, lambda: [*by_number])
        return [by_number[number] for number in theirs if by_number.get(number)] + own
