"""Child processes of the script: those that it starts itself run on rank 0 only.

Each rank has workers of its own for pools and executors, which write to the rank's overlay.
"""

from __future__ import annotations

import concurrent
import ctypes
import multiprocessing
import os
import signal
from concurrent.futures import wait
from threading import get_ident
from typing import Any, ClassVar

from autoddp.comm.outcome import Outcome
from autoddp.effects.effect_feature import EffectRow, ask
from autoddp.effects.exchanges import Exchanges
from autoddp.effects.ownership import scripts
from autoddp.effects.who_acts import Mode
from autoddp.patching import Call, patch

THROUGH = tuple(
    f"{path}/" for package in (multiprocessing, concurrent) for path in package.__path__
)
SPAWNS = ("multiprocessing.", "loky.backend.", "joblib.externals.loky.backend.")
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# The first code that an interpreter runs if multiprocessing starts it for a rank above 0.
MUTED = (
    "import sys; sys.path.append({!r}); from autoddp.process.muted import mute; "
    "sys.path.pop(); mute({}, {}, {!r}, {!r})"
)


class Children(Exchanges):
    """The feature for child processes; this part is for the workers of pools and executors."""

    name: ClassVar[str] = "children"
    without: ClassVar[str] = "every rank starts all processes, whose results come in any order"
    rows: ClassVar[tuple[EffectRow, ...]] = (
        ask(
            ("multiprocessing.process:BaseProcess.is_alive",),
            why="all ranks get rank 0's answer on whether a worker still runs",
        ),
    )

    @patch(
        "multiprocessing.process:BaseProcess._bootstrap",
        why="workers that are daemons end with their rank, even if it is killed",
    )
    def follow(self, call: Call) -> Any:
        """Have the kernel kill this process, a fork, when the rank ends.

        The kernel watches the forking thread, so only forks of the script's thread do this.
        """
        if call.instance.daemon and get_ident() == self.context.first_thread:
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        return call.plain()

    @patch(
        *(f"{at}spawn:get_preparation_data" for at in SPAWNS),
        optional=True,
        why="spawned workers of ranks above 0 write to their rank's overlay",
    )
    def prepare_fresh(self, call: Call) -> Any:
        """Have a new interpreter of a rank above 0 run `MUTED` first."""
        data = call.plain()
        if not self.rank or self.effects.mode() is Mode.PASS_THROUGH:
            return data
        world, folder, view = self.run.world, self.effects.overlay.root(), self.run.options.view
        first = RunFirst(MUTED.format(ROOT, world.rank, world.world_size, folder, view))
        return {"autoddp": first, **data}

    @patch(
        *("os:wait", "os:waitpid", "multiprocessing.process:BaseProcess.join"),
        *(f"multiprocessing.pool:{name}" for name in ("Pool.join", "Pool.terminate")),
        *(f"multiprocessing.pool:ApplyResult.{name}" for name in ("get", "wait")),
        *(f"multiprocessing.pool:IMapIterator.{name}" for name in ("next", "__next__")),
        *("concurrent.futures:Future.result", "joblib.parallel:Parallel.__call__"),
        "concurrent.futures.process:ProcessPoolExecutor.shutdown",
        optional=True,
        why="rank 0's workers have written their files before any rank reads them",
    )
    def wait_for_all(self, call: Call) -> Any:
        """Wait for the same workers of all ranks, so that rank 0's files are complete.

        This rank's files stay in its overlay while other workers run.
        """
        direct = call.name.startswith("posix.") or call.name.endswith("Process.join")
        if not self._waits(() if direct else THROUGH):
            return call.plain()
        outcome = Outcome.of(call.plain)
        self.effects.do_on_rank0(call.name, lambda: None)
        if not (call.name.endswith("Future.result") or getattr(call.instance, "_cache", None)):
            self.effects.overlay.refresh()
        return outcome.unwrap()

    @patch(
        "multiprocessing.pool:Pool.imap_unordered",
        *("concurrent.futures:as_completed", "concurrent.futures._base:as_completed"),
        why="results are in the order of the tasks, which is the same on all ranks",
    )
    def in_order(self, call: Call) -> Any:
        """Return the results in the order of the tasks; tasks in a set have no order."""
        tasks = call.named.get("fs", ())
        if not self._waits() or isinstance(tasks, (set, frozenset)) or call.named.get("timeout"):
            return call.plain()
        if call.instance is not None:
            return call.instance.imap(*call.args, **call.kwargs)
        return (wait([task]) and task for task in dict.fromkeys(tasks))

    def _waits(self, through: tuple[str, ...] = ()) -> bool:
        """Return whether the script itself waits, as all ranks do in one order."""
        return self.effects.mode(by=scripts(*through)) is Mode.SYNCED


class RunFirst:
    """An object that runs `code` where it is unpickled, before autoddp is imported there."""

    def __init__(self, code: str) -> None:
        self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (self.code,)
