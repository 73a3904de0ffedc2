"""Worker processes that the script starts: each rank has its own, and what they do is done once."""

from __future__ import annotations

import concurrent
import ctypes
import multiprocessing
import os
import pickle
import queue
import signal
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from typing import Any, ClassVar

from autoddp.comm.outcome import Outcome
from autoddp.effects.engine import Mode
from autoddp.effects.outward import Outward
from autoddp.effects.ownership import NOBODY, caller
from autoddp.effects.running_programs import see
from autoddp.effects.unhurried import Unhurried, carried, taken
from autoddp.patching import Call, patch
from autoddp.report import is_users

THROUGH = tuple(
    f"{path}/" for package in (multiprocessing, concurrent) for path in package.__path__
)
LIBC = ctypes.CDLL(None)
LATE = (TimeoutError, multiprocessing.TimeoutError)
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# The first code that a fresh interpreter runs, which multiprocessing starts for a rank above 0.
MUTED = (
    "import sys; sys.path.append({root!r}); from autoddp.process.muted import mute; "
    "sys.path.remove({root!r}); mute({rank}, {size}, {folder!r})"
)


class Children(Outward):
    """The script's worker processes: rank 0's write; those of others do the same without trace."""

    name: ClassVar[str] = "children"
    without: ClassVar[str] = "worker processes of every rank write"

    def setup(self, undo: ExitStack) -> None:
        """Have workers that are daemons end with this rank, and prepare to number the futures."""
        super().setup(undo)
        self.unhurried = Unhurried(self.effects, self.name)
        self._follows = False  # whether the process that is being forked ends with this one
        this = weakref.ref(self)  # the interpreter keeps what it calls after a fork for ever
        parent = os.getpid()

        def follow() -> None:
            feature = this()
            if feature is not None and feature._follows:
                LIBC.prctl(1, signal.SIGKILL)
                if os.getppid() != parent:
                    os._exit(1)

        os.register_at_fork(after_in_child=follow)
        self._futures: weakref.WeakKeyDictionary[Any, tuple[int, bool]] = (
            weakref.WeakKeyDictionary()
        )
        self._count = 0

    @patch(
        "multiprocessing.process:BaseProcess.start",
        why="what worker processes of ranks above 0 write goes to their rank's scratch; a loader's "
        "end with their rank, if that is killed, too",
    )
    def prepare(self, call: Call) -> Any:
        """Make this rank's scratch before the worker starts, so that the rank removes it."""
        if self.rank and self.effects.context.in_job():
            self.effects.scratch.ready()
        # the kernel sends its signal when the thread that forks ends: so from the main thread alone
        main = threading.current_thread() is threading.main_thread()
        self._follows = call.instance.daemon and main and self.effects.context.in_job()
        try:
            return call.plain()
        finally:
            self._follows = False

    @patch(
        "multiprocessing.spawn:get_preparation_data",
        "joblib.externals.loky.backend.spawn:get_preparation_data",
        "loky.backend.spawn:get_preparation_data",
        optional=True,
        why="worker processes of ranks above 0 that are no forks write to their rank's scratch, "
        "too",
    )
    def prepare_fresh(self, call: Call) -> Any:
        """Have a fresh worker run `MUTED` first of all; those of a data loader are left alone."""
        data = call.plain()
        if self.rank and self.effects.context.in_job() and self._is_the_scripts():
            world, folder = self.run.world, self.effects.scratch.ready()
            code = MUTED.format(root=ROOT, rank=world.rank, size=world.world_size, folder=folder)
            return {"autoddp": First(code), **data}
        return data

    @patch(
        "multiprocessing.pool:Pool.join",
        "multiprocessing.pool:Pool.terminate",
        "multiprocessing.pool:ApplyResult.get",
        "multiprocessing.pool:ApplyResult.wait",
        "multiprocessing.pool:IMapIterator.next",
        "multiprocessing.pool:IMapIterator.__next__",
        "concurrent.futures.process:ProcessPoolExecutor.shutdown",
        why="what rank 0's worker processes wrote is there before any rank reads it",
    )
    def wait_for_all(self, call: Call) -> Any:
        """Wait for rank 0's workers, then for this rank's own; rank 0 tells whether time is up."""
        if self.effects.users(THROUGH) is not Mode.SYNCED:
            return call.plain()
        return self._after_rank_0(call)

    @patch(
        "joblib.parallel:Parallel.__call__",
        optional=True,
        why="what rank 0's worker processes wrote is there before any rank reads it",
    )
    def finish_with_rank_0(self, call: Call) -> Any:
        """Have every rank's workers compute, at one time, and wait for rank 0's."""
        if self.effects.users() is not Mode.SYNCED:
            return call.plain()
        results = call.plain()
        self.effects.ask_rank0(call.name, lambda: None)
        self.effects.follow()
        return results

    @patch(
        "multiprocessing.process:BaseProcess.join",
        why="what rank 0's worker process wrote is there before any rank reads it",
    )
    def wait_for_one(self, call: Call) -> Any:
        """Wait for rank 0's worker first if the script itself joins; a pool joins at any time."""
        if self.effects.users() is not Mode.SYNCED:
            return call.plain()
        return self._after_rank_0(call)

    @patch(
        "concurrent.futures:Future.result",
        why="a result comes when rank 0's worker process has written",
    )
    def result_of_all(self, call: Call) -> Any:
        """Wait for rank 0's result first if it is a process's; a thread's is each rank's own."""
        _, writes = self._futures.get(call.instance, (0, False))
        if not writes or self.effects.users(THROUGH) is not Mode.SYNCED:
            return call.plain()
        return self._after_rank_0(call)

    @patch(
        "concurrent.futures.process:ProcessPoolExecutor.submit",
        "concurrent.futures.thread:ThreadPoolExecutor.submit",
        why="a result comes when rank 0's worker process has written",
    )
    def submit(self, call: Call) -> Any:
        """Submit a task; note its number, and whether a process computes it; `map` calls this."""
        future, self._count = call.plain(), self._count + 1
        self._futures[future] = (
            self._count,
            type(call.instance).__module__ != ThreadPoolExecutor.__module__,
        )
        return future

    @patch(
        "concurrent.futures:as_completed",
        "concurrent.futures._base:as_completed",
        why="results come in the same order on all ranks: that of the tasks",
    )
    def complete_in_order(self, call: Call) -> Any:
        """Return the futures in the order of their tasks; one process promises no order."""
        named = call.named
        if self.effects.users(THROUGH) is not Mode.SYNCED or "fs" not in named:
            return call.plain()
        tasks = sorted(set(named["fs"]), key=lambda task: self._futures.get(task, (0, False))[0])
        return _one_by_one(tasks, named.get("timeout"))

    @patch(
        "multiprocessing.queues:Queue.get",
        "multiprocessing.queues:SimpleQueue.get",
        why="what worker processes send comes in the order in which it came to rank 0",
    )
    def take_alike(self, call: Call) -> Any:
        """Return rank 0's item; take one here, too, so that this rank's workers need not wait."""
        if self.effects.users() is not Mode.SYNCED:
            return call.plain()
        mine: Any = None

        def first() -> list[Any]:
            nonlocal mine
            try:
                mine = call.plain()
            except queue.Empty:
                return ["empty", None]
            return ["came", carried(pickle.dumps(mine))]

        came, data = self.unhurried.tell(Mode.SYNCED, "Queue.get", "Queue.get", first)
        if came == "empty":
            raise queue.Empty
        if self.rank == 0:
            return mine
        # OSError: a tensor of a worker that has ended, which nobody wants
        with self.effects.context.internal(), suppress(OSError):
            call.wrapped()
        self.effects.follow()
        return pickle.loads(taken(data))

    @patch(
        "multiprocessing.process:BaseProcess.is_alive",
        why="whether a worker still works, rank 0 tells",
    )
    def is_alive(self, call: Call) -> Any:
        """Return rank 0's answer; if its worker has ended, wait until this rank's has, too."""
        if self.effects.users() is not Mode.SYNCED:
            return call.plain()
        alive = self.effects.ask_rank0("Process.is_alive", call.wrapped)
        if self.rank and not alive and call.wrapped():
            with self.effects.context.internal():
                call.instance.join()
        self.effects.follow()
        return alive

    @patch(
        "multiprocessing.pool:Pool.imap_unordered",
        why="results come in the same order on all ranks: that of the tasks",
    )
    def in_order(self, call: Call) -> Any:
        """Return the results in the order of the tasks; one process promises no order."""
        if self.effects.users(THROUGH) is not Mode.SYNCED:
            return call.plain()
        return call.instance.imap(*call.args, **call.kwargs)

    def _is_the_scripts(self) -> bool:
        """Return whether the script starts a process, itself or by a pool: in a thread of that."""
        by = caller(3, through_pools())
        return self.effects.mode() is not Mode.PASS_THROUGH and (is_users(by) or by == NOBODY)

    def _after_rank_0(self, call: Call) -> Any:
        outcome = Outcome()

        def first() -> bool:
            nonlocal outcome
            outcome = Outcome.of(call.plain)
            return isinstance(outcome.error, LATE) and call.named.get("timeout") is not None

        late = self.unhurried.tell(Mode.SYNCED, call.name, call.name, first)
        if self.rank == 0:
            return outcome.unwrap()
        see(self.effects)
        try:
            with self.effects.context.internal():
                if call.named.get("timeout") is None:
                    return call.plain()
                return call.changed(timeout=0 if late else None)
        finally:
            self.effects.follow()


def through_pools() -> tuple[str, ...]:
    """Return the folders of packages that start the script's worker processes for it."""
    pools = (sys.modules[name] for name in ("joblib", "loky") if name in sys.modules)
    return (*THROUGH, *(f"{path}/" for pool in pools for path in pool.__path__))


def _one_by_one(tasks: list[Any], timeout: float | None) -> Iterator[Any]:
    """Yield the futures once they are done, like `as_completed`, but in the given order."""
    deadline = None if timeout is None else time.monotonic() + timeout
    for at, task in enumerate(tasks):
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        if not wait([task], left).done:
            raise TimeoutError(f"{len(tasks) - at} (of {len(tasks)}) futures unfinished")
        yield task


class First:
    """An object that runs `code` where it is unpickled: a process without any of autoddp yet."""

    def __init__(self, code: str) -> None:
        self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (self.code,)
