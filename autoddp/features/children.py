"""Worker processes of the script's own: each rank has its own, and what they do is done once."""

from __future__ import annotations

import concurrent
import multiprocessing
import os
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, ClassVar

from autoddp.outside.effects import Call, Mode, Outward
from autoddp.outside.outcome import Outcome
from autoddp.outside.programs import see
from autoddp.outside.told import Told
from autoddp.patching import patch

THROUGH = tuple(f"{path}/" for package in (multiprocessing, concurrent) for path in package.__path__)
LATE = (TimeoutError, multiprocessing.TimeoutError)
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# What a fresh interpreter that multiprocessing starts for a rank above 0 does first of all.
MUTED = (
    "import sys; sys.path.append({root!r}); from autoddp.joining.muted import mute; "
    "sys.path.remove({root!r}); mute({rank}, {size}, {folder!r})"
)


class Children(Outward):
    """Rank 0's worker processes write; those of the others do the same work, and leave no trace."""

    name: ClassVar[str] = "children"
    without: ClassVar[str] = "worker processes of every rank write"

    def setup(self, undo: ExitStack) -> None:
        """No results are awaited yet."""
        super().setup(undo)
        self.told = Told(self.effects, self.name)
        self._futures: weakref.WeakSet[Any] = weakref.WeakSet()

    @patch(
        "multiprocessing.process:BaseProcess.start",
        why="what the worker processes of ranks above 0 write goes to their rank's scratch",
    )
    def prepare(self, wrapped: Callable[..., Any], process: Any, args: Any, kwargs: Any) -> Any:
        """Made before, it is removed with the rank."""
        if self.rank and self.effects.at_home():
            self.effects.scratch.ready()
        return wrapped(*args, **kwargs)

    @patch(
        "multiprocessing.spawn:get_preparation_data",
        why="worker processes of ranks above 0 that are no forks write to their rank's scratch, too",
    )
    def prepare_fresh(self, wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
        """By what is unpickled first of all; a data loader's are left alone."""
        data = wrapped(*args, **kwargs)
        if self.rank and self.effects.at_home() and self.effects.users(THROUGH) is not Mode.PLAIN:
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
    def wait_for_all(self, wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
        """Rank 0's first, then this rank's own; whether time is up, rank 0 tells."""
        if self.effects.users(THROUGH) is not Mode.AGREED:
            return wrapped(*args, **kwargs)
        return self._after_rank_0(Call(wrapped, args, kwargs))

    @patch(
        "multiprocessing.process:BaseProcess.join",
        why="what rank 0's worker process wrote is there before any rank reads it",
    )
    def wait_for_one(self, wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
        """Where the script itself waits: a pool does when it likes."""
        if self.effects.users() is not Mode.AGREED:
            return wrapped(*args, **kwargs)
        return self._after_rank_0(Call(wrapped, args, kwargs))

    @patch("concurrent.futures:Future.result", why="a result comes when rank 0's worker process has written")
    def result_of_all(self, wrapped: Callable[..., Any], future: Any, args: Any, kwargs: Any) -> Any:
        """Of processes; a thread's is each rank's own."""
        if future not in self._futures or self.effects.users(THROUGH) is not Mode.AGREED:
            return wrapped(*args, **kwargs)
        return self._after_rank_0(Call(wrapped, args, kwargs))

    @patch(
        "concurrent.futures.process:ProcessPoolExecutor.submit",
        why="a result comes when rank 0's worker process has written",
    )
    def submit(self, wrapped: Callable[..., Any], executor: Any, args: Any, kwargs: Any) -> Any:
        """`map` is made of this."""
        future = wrapped(*args, **kwargs)
        self._futures.add(future)
        return future

    @patch("multiprocessing.process:BaseProcess.is_alive", why="whether a worker still works, rank 0 tells")
    def is_alive(self, wrapped: Callable[..., Any], process: Any, args: Any, kwargs: Any) -> Any:
        """Then this rank's has ended, too."""
        if self.effects.users() is not Mode.AGREED:
            return wrapped(*args, **kwargs)
        alive = self.effects.answer("Process.is_alive", wrapped)
        if self.rank and not alive and wrapped():
            with self.effects.own():
                process.join()
        return alive

    @patch(
        "multiprocessing.pool:Pool.imap_unordered",
        why="results come in the same order on all ranks: that of the tasks",
    )
    def in_order(self, wrapped: Callable[..., Any], pool: Any, args: Any, kwargs: Any) -> Any:
        """One process promises no order."""
        if self.effects.users(THROUGH) is not Mode.AGREED:
            return wrapped(*args, **kwargs)
        return pool.imap(*args, **kwargs)

    def _after_rank_0(self, call: Call) -> Any:
        outcome = Outcome()

        def first() -> bool:
            nonlocal outcome
            outcome = Outcome.of(call.plain)
            return isinstance(outcome.error, LATE) and call.named.get("timeout") is not None

        late = self.told.tell(Mode.AGREED, call.name, call.name, first)
        if self.rank == 0:
            return outcome.unwrap()
        see(self.effects)
        with self.effects.own():
            if call.named.get("timeout") is None:
                return call.plain()
            return call.changed(timeout=0 if late else None)


class First:
    """Unpickled, it runs some code; there is nothing of ours yet where that happens."""

    def __init__(self, code: str) -> None:
        self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (self.code,)
