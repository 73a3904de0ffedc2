"""Worker processes that the script starts: each rank has its own, which write to its overlay."""

from __future__ import annotations

import concurrent
import ctypes
import multiprocessing
import os
import signal
from concurrent.futures import wait
from typing import Any, ClassVar

from autoddp.comm.outcome import Outcome
from autoddp.effects.engine import Mode
from autoddp.effects.outward import EffectRow, Outward, ask, each
from autoddp.effects.ownership import users_call
from autoddp.patching import Call, patch

THROUGH = tuple(
    f"{path}/" for package in (multiprocessing, concurrent) for path in package.__path__
)
SPAWNS = ("multiprocessing.", "loky.backend.", "joblib.externals.loky.backend.")
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
QUEUE = (
    "items come from each rank's own workers, in an order that may differ between ranks: "
    "Pool.map and executors return results in one order"
)
# The first code of an interpreter that multiprocessing starts for a rank above 0.
MUTED = (
    "import sys; sys.path.append({!r}); from autoddp.process.muted import mute; "
    "sys.path.pop(); mute({}, {}, {!r})"
)


class Children(Outward):
    """The script's worker processes: those of ranks above 0 write to their rank's overlay."""

    name: ClassVar[str] = "children"
    without: ClassVar[str] = "worker processes of every rank write, and results come in any order"
    rows: ClassVar[tuple[EffectRow, ...]] = (
        ask(
            ("multiprocessing.process:BaseProcess.is_alive",),
            why="whether a worker still runs is rank 0's answer",
        ),
        each(
            ("multiprocessing.queues:Queue.get", "multiprocessing.queues:SimpleQueue.get"),
            why=QUEUE,
        ),
    )

    @patch(
        "multiprocessing.process:BaseProcess._bootstrap",
        why="workers that are daemons end with their rank, if that is killed, too",
    )
    def follow(self, call: Call) -> Any:
        """Have the kernel end this process, a fork, when the rank ends.

        The kernel goes by the thread that forked it, so this is done on the script's thread alone.
        """
        if call.instance.daemon and self.context.on_script_thread():
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        return call.plain()

    @patch(
        *(f"{at}spawn:get_preparation_data" for at in SPAWNS),
        optional=True,
        why="workers of ranks above 0 that are no forks write to their rank's overlay, too",
    )
    def prepare_fresh(self, call: Call) -> Any:
        """Have a new interpreter of a rank above 0 run `MUTED` before all else."""
        data = call.plain()
        if not self.rank or self.effects.mode() is Mode.PASS_THROUGH:
            return data
        world, folder = self.run.world, self.effects.overlay.place()
        return {"autoddp": First(MUTED.format(ROOT, world.rank, world.world_size, folder)), **data}

    @patch(
        *("os:wait", "os:waitpid", "multiprocessing.process:BaseProcess.join"),
        *(f"multiprocessing.pool:{of}" for of in ("Pool.join", "Pool.terminate")),
        *(f"multiprocessing.pool:ApplyResult.{of}" for of in ("get", "wait")),
        *(f"multiprocessing.pool:IMapIterator.{of}" for of in ("next", "__next__")),
        *("concurrent.futures:Future.result", "joblib.parallel:Parallel.__call__"),
        "concurrent.futures.process:ProcessPoolExecutor.shutdown",
        optional=True,
        why="what rank 0's worker processes wrote is there before any rank reads it",
    )
    def wait_for_all(self, call: Call) -> Any:
        """Wait for the same workers of all ranks, so that rank 0's files are complete.

        While other workers run, this rank's own files stay in its overlay.
        """
        itself = call.name.startswith("posix.") or call.name.endswith("Process.join")
        if not self._asks(() if itself else THROUGH):
            return call.plain()
        outcome = Outcome.of(call.plain)
        self.effects.do_on_rank0(call.name, lambda: None)
        if not (call.name.endswith("Future.result") or getattr(call.instance, "_cache", None)):
            self.effects.overlay.refresh()
        return outcome.unwrap()

    @patch(
        "multiprocessing.pool:Pool.imap_unordered",
        *("concurrent.futures:as_completed", "concurrent.futures._base:as_completed"),
        why="results come in the same order on all ranks: that of the tasks",
    )
    def in_order(self, call: Call) -> Any:
        """Return the results in the order of the tasks; a set has none."""
        tasks = call.named.get("fs", ())
        if not self._asks() or isinstance(tasks, (set, frozenset)) or call.named.get("timeout"):
            return call.plain()
        if call.instance is not None:
            return call.instance.imap(*call.args, **call.kwargs)
        return (wait([task]) and task for task in dict.fromkeys(tasks))

    def _asks(self, through: tuple[str, ...] = ()) -> bool:
        """Return whether the script itself waits, which all ranks do in the same order."""
        return self.effects.mode() is Mode.SYNCED and users_call(2, through)


class First:
    """An object that runs `code` where it is unpickled, before autoddp is imported there."""

    def __init__(self, code: str) -> None:
        self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (self.code,)
