"""The base class of features for side effects, and rows of patches that need no method.

`EffectFeature.serve` handles a call of a function in a row.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any, ClassVar

from autoddp.comm.context import Code
from autoddp.effects.ownership import whose
from autoddp.effects.who_acts import Mode
from autoddp.errors import OutOfReach
from autoddp.patching import Call, Feature, Patch, patch, stands_for
from autoddp.report import temporary, users_line

if TYPE_CHECKING:
    from autoddp.effects.run import Run


class Handling(Enum):
    """How a call that the script makes on all ranks is handled."""

    ASK = "rank 0 makes it, and all ranks get its result or exception"
    DO = "like ASK, once all ranks have arrived: it changes what slower ranks may still read"
    EACH = "every rank makes it, and a line reports that"


@dataclass(frozen=True)
class EffectRow:
    """Functions that are handled in the same way, and why.

    Attributes:
        targets: The functions, as "module:Dotted.path".
        why: The reason, which `autoddp patches` prints; with EACH it is part of the reported line.
        harmless: Whether `--strict` accepts EACH.
    """

    handling: Handling
    targets: tuple[str, ...]
    why: str
    harmless: bool = False
    optional: bool = False

    def patch(self, feature: str) -> Patch:
        """Return the patch of this row, whose method is the feature's `serve`."""
        return Patch(feature, self.targets, self.why, "serve", self.optional)


ask = partial(EffectRow, Handling.ASK)
do = partial(EffectRow, Handling.DO)
each = partial(EffectRow, Handling.EACH)


class EffectFeature(Feature):
    """The base class of features for side effects.

    Attributes:
        rows: The patches that need no method of their own.
    """

    rows: ClassVar[tuple[EffectRow, ...]] = ()

    def __init__(self, run: Run) -> None:
        self.run = run
        self.effects, self.context = run.effects, run.group.context
        self.rank = run.world.rank

    def setup(self, undo: ExitStack) -> None:
        """Watch the garbage collector, which runs at different times on each rank."""
        with self.effects.context.internal():
            temporary.look()
            self.effects.overlay.root()
        undo.callback(self.effects.end)
        self.context.watch_collector(undo)

    @classmethod
    def patches(cls) -> list[Patch]:
        """Return the patches of the methods, and those of the rows."""
        return [*super().patches(), *(row.patch(cls.name) for row in cls.rows)]

    def serve(self, call: Call) -> Any:
        """Handle a call of a function in `rows`."""
        row = next(row for row in self.rows if call.target in row.targets)
        mode = self.effects.mode(by=whose)
        name = call.target.removeprefix("builtins:").replace(":", ".")
        if mode is not Mode.SYNCED:
            return call.plain()
        if row.handling is Handling.EACH:
            say = self.run.report.say_once if row.harmless else self.run.report.doubt
            say(self.name, users_line(), f"{name}: {row.why}")
            with self.context.internal():  # calls inside of it need no line of their own
                return call.plain()
        if row.handling is Handling.DO:
            return self.effects.do_on_rank0(name, call.plain)
        return self.effects.ask_rank0(name, call.plain)

    def of_rank0(self, what: str, act: Callable[[], Any]) -> Any:
        """Return what `act` returns on rank 0, which alone has what it asks.

        Raises:
            OutOfReach: This is another rank, where ranks are in no common order.
        """
        if self.effects.mode() is Mode.SYNCED:
            return self.effects.ask_rank0(what, act)
        if self.rank:
            raise OutOfReach(
                f"{what}: it is rank 0's, which other ranks cannot ask from a thread, a data set's "
                "fetch, a child process or at exit; call it on the main thread"
            )
        return act()

    @patch(
        "torch.utils.data._utils.fetch:_MapDatasetFetcher.fetch",
        why="ranks fetch different rows, so effects of a data set are not synchronized",
        hot=True,
    )
    def fetch_alone(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """Fetch a batch; its reads and writes are those of this rank alone."""
        context, fetches, internal = self.context, int(Code.FETCH), int(Code.INTERNAL)

        @stands_for(plain)
        def fetch(*args: Any, **kwargs: Any) -> Any:
            depth, on_thread = context.depth, get_ident() == context.thread
            through = on_thread and (depth[fetches] or depth[internal])
            if through or not context.in_job():
                return plain(*args, **kwargs)
            if not on_thread:
                with context.internal():
                    return plain(*args, **kwargs)
            depth[fetches] += 1  # as `within` does, which makes four calls
            try:
                return plain(*args, **kwargs)
            finally:
                depth[fetches] -= 1

        return fetch
