"""Whose call it is, and what shall become of it: the rules that all side effects share.

A call is agreed on over all ranks only where all ranks make it, in the same order: in the rank
itself (not in a worker process), on the thread that runs the script, outside a data set's fetch.
"""

from __future__ import annotations

import inspect
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from enum import Enum
from functools import lru_cache, wraps
from types import BuiltinMethodType, ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from autoddp.outside.callers import loads_data, users_call
from autoddp.outside.collector import Collector
from autoddp.outside.losses import Losses
from autoddp.outside.scratch import Scratch
from autoddp.patching import Feature, patch
from autoddp.report import users_line

if TYPE_CHECKING:
    from autoddp.group import Group
    from autoddp.outside.handover import Client, Server
    from autoddp.outside.layers import Handle
    from autoddp.run import Run

Function = TypeVar("Function", bound=Callable[..., Any])


class Mode(Enum):
    """What becomes of a call that touches the outside world."""

    PLAIN = "as if we were not there"
    AGREED = "rank 0 does it, for all"
    ALONE = "rank 0 does it, the others on private scratch, and nobody waits"
    TRIAL = "nobody does it: one process would not have run this"


def stands_for(original: Any) -> Callable[[Function], Function]:
    """Have the decorated function look like `original`, which torch.compile would not look into."""

    def dress(function: Function) -> Function:
        wraps(original)(function)
        function._torchdynamo_disable = True  # type: ignore[attr-defined]
        return function

    return dress


@lru_cache(maxsize=256)
def _signature(function: Any) -> inspect.Signature:
    return inspect.signature(function)


class Call:
    """A call of a wrapped function; `named` are its arguments, none where they do not fit."""

    def __init__(self, wrapped: Callable[..., Any], args: Any, kwargs: Any) -> None:
        self.wrapped, self.args, self.kwargs = wrapped, args, kwargs
        self.named: dict[str, Any] = {}
        function = getattr(wrapped, "__func__", wrapped)  # a method's own would be kept for ever
        self._bound = () if function is wrapped else (wrapped.__self__,)  # type: ignore[attr-defined]
        kept = not isinstance(wrapped, BuiltinMethodType) or isinstance(wrapped.__self__, ModuleType)
        try:
            signature = _signature(function) if kept else inspect.signature(wrapped)
            self._fit = signature.bind(*self._bound, *args, **kwargs)
        except (TypeError, ValueError):  # ValueError: it is written in C, and does not tell
            return  # the function itself words it best
        self.named = self._fit.arguments

    @property
    def name(self) -> str:
        """What is called, in full: torch.serialization.save."""
        kind = type(self.wrapped)
        return f"{self.wrapped.__module__}.{getattr(self.wrapped, '__qualname__', kind.__name__)}"

    def plain(self) -> Any:
        """The call as it was made."""
        return self.wrapped(*self.args, **self.kwargs)

    def changed(self, **values: Any) -> Any:
        """The call with other values for some arguments."""
        fit = inspect.BoundArguments(self._fit.signature, dict(self._fit.arguments))
        fit.arguments.update(values)
        return self.wrapped(*fit.args[len(self._bound) :], **fit.kwargs)


class Effects:
    """The outside world as one rank may touch it."""

    def __init__(self, group: Group, *, exchange: bool = True) -> None:
        self.group = group
        self.rank = group.rank
        self.exchange = exchange and group.size > 1  # else nobody waits for anybody
        self.scratch = Scratch()
        self.client: Client | None = None  # where this node is not rank 0's
        self.server: Server | None = None  # on rank 0, where there are several nodes
        self.placed: list[int] | None = None  # what `nodes` has found out
        self.before_save: list[Callable[[], None]] = []  # before a checkpoint, where all ranks are
        self.losses = Losses()  # what failed on rank 0 and is to be raised on all
        self.aside = 0  # above 0 inside an effect, and inside a data set's fetch
        self.trials = 0
        self.ending = False  # the script has ended; what its objects do at their end, ranks do apart
        self.over = False
        self._pid, self._thread = os.getpid(), threading.get_ident()
        self._child = 0  # this process, where it was forked from the rank
        self.collector = Collector()
        self.handles: dict[int, Handle] = {}  # descriptors that stand for one file on all ranks

    def at_home(self) -> bool:
        """Whether this is the rank itself, not a process forked from it, and the job goes on."""
        return not self.over and os.getpid() == self._pid

    def here(self) -> bool:
        """As `at_home`, and not in the midst of an effect or of a fetch."""
        return not self.aside and self.at_home()

    def abroad(self) -> bool:
        """Whether this process was forked from the rank, as its equals were, and not to load data."""
        here = os.getpid()
        if here == self._pid:
            return False
        if here != self._child:  # forked by any thread, while the script was anywhere
            self._child, self.aside, self._thread = here, 0, threading.get_ident()
        return not (self.over or loads_data())

    def mode(self) -> Mode:
        """What becomes of an effect at this point."""
        if self.abroad() and self.rank:
            return Mode.PLAIN if self.aside else Mode.ALONE
        if self.ending or self.collector.running or threading.get_ident() != self._thread:
            return Mode.ALONE if self.at_home() else Mode.PLAIN
        if not self.here():
            return Mode.PLAIN
        if self.trials:
            return Mode.TRIAL
        return Mode.AGREED if self.exchange else Mode.ALONE

    def users(self, through: tuple[str, ...] = ()) -> Mode:
        """As `mode`, but PLAIN where a library does it for itself; files of `through` are none."""
        return self.mode() if users_call(2, through) else Mode.PLAIN

    @contextmanager
    def own(self) -> Iterator[None]:
        """What is done in here is plain."""
        if threading.get_ident() != self._thread:
            yield  # or what the script does meanwhile would be plain, too
            return
        self.aside += 1
        try:
            yield
        finally:
            self.aside -= 1

    @contextmanager
    def trial(self) -> Iterator[None]:
        """What is done in here one process would not have done: it must leave no trace."""
        self.trials += 1
        try:
            yield
        finally:
            self.trials -= 1

    def answer(self, what: str, act: Callable[[], Any]) -> Any:
        """Rank 0's answer to a question to the outside world."""
        self.aside += 1  # as `own` does; a clock is read in a few microseconds
        try:
            return self.group.effect(f"{what} at {users_line(2)}", act)
        finally:
            self.aside -= 1

    def change(self, what: str, act: Callable[[], Any], told: Callable[[Any], Any] | None = None) -> Any:
        """Rank 0 changes the outside world once all ranks are here; all raise what it raised.

        Returns:
            On rank 0 what `act` returned, on the others what `told` makes of that.
        """
        kept: Any = None

        def keep() -> Any:
            nonlocal kept
            self.losses.tell()
            kept = act()
            return told(kept) if told is not None else None

        with self.own():
            answer = self.group.effect(f"{what} at {users_line(2)}", keep, meet=True)
        return kept if self.rank == 0 else answer

    def found(self, path: str) -> str:
        """Where this rank reads what is at `path`; nowhere, if rank 0 has removed it."""
        with self.own():
            at = self.scratch.find(path)
        if at is not None or self.client is None:
            return at or path
        try:
            return str(self.client.find(path))
        except FileNotFoundError:
            return ""

    def end(self) -> None:
        """Nothing is agreed on any more; the scratch goes away."""
        self.over = True
        if os.getpid() == self._pid:
            self.scratch.remove()


class Outward(Feature):
    """What the features that touch the outside world share; wrappers call `self.effects`."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.effects = run.effects
        self.rank = run.world.rank

    def setup(self, undo: ExitStack) -> None:
        """In a trial no effect of ours takes place."""
        with self.effects.own():
            tempfile.gettempdir()  # found out once: by all ranks, not by those with a scratch first
        trials = self.run.view.trials
        undo.callback(self.effects.end)
        self.effects.collector.watch(undo)
        trials.append(self.effects.trial)
        undo.callback(trials.remove, self.effects.trial)

    @patch(
        "torch.utils.data._utils.fetch:_MapDatasetFetcher.fetch",
        why="ranks fetch different rows: what a data set does there is each rank's own",
    )
    def fetch_alone(
        self, wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Mapping[str, Any]
    ) -> Any:
        """Inside, reads and writes are as if we were not there."""
        if not self.effects.here():
            return wrapped(*args, **kwargs)
        with self.effects.own():
            return wrapped(*args, **kwargs)
