"""The base of features that touch the outside world, and the table of patches without a method.

`Outward.serve` decides what becomes of a call of a function in the table.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from autoddp.comm.context import Code
from autoddp.effects.engine import Mode
from autoddp.patching import Call, Feature, Patch, patch
from autoddp.report import temporary, users_line

if TYPE_CHECKING:
    from autoddp.effects.run import Run


class Fate(Enum):
    """The fate of a call that the script makes on all ranks."""

    ASK = "rank 0 makes it, and all ranks get what it returns or raises"
    DO = "likewise, but after all ranks have arrived: it changes what slower ranks may still read"
    EACH = "every rank makes it for itself, and a line reports that"


@dataclass(frozen=True)
class EffectRow:
    """A row of the table: functions, their fate, and why.

    Attributes:
        targets: Names as "module:Dotted.path"; several are aliases, or share all else.
        why: The reason, which `autoddp patches` prints; with EACH it is part of the reported line.
        harmless: Whether `--strict` accepts EACH.
    """

    fate: Fate
    targets: tuple[str, ...]
    why: str
    harmless: bool = False
    optional: bool = False

    def patch(self, feature: str) -> Patch:
        """Return the patch of this row, served by the method `serve` of its feature."""
        return Patch(feature, self.targets, self.why, "serve", self.optional)


ask = partial(EffectRow, Fate.ASK)
do = partial(EffectRow, Fate.DO)
each = partial(EffectRow, Fate.EACH)


class Outward(Feature):
    """The base of features that touch the outside world.

    Attributes:
        rows: The patches that need no method of their own.
    """

    rows: ClassVar[tuple[EffectRow, ...]] = ()

    def __init__(self, run: Run) -> None:
        self.run = run
        self.effects, self.context = run.effects, run.group.context
        self.rank = run.world.rank

    def setup(self, undo: ExitStack) -> None:
        """Watch the collector: it runs at different moments on each rank."""
        with self.effects.context.internal():
            temporary.look()
            self.effects.overlay.place()
        undo.callback(self.effects.end)
        self.context.watch_collector(undo)

    @classmethod
    def patches(cls) -> list[Patch]:
        """Return the patches of the methods, and those of the rows."""
        return [*super().patches(), *(row.patch(cls.name) for row in cls.rows)]

    def serve(self, call: Call) -> Any:
        """Handle a call of a function of `rows` by its fate."""
        row = next(row for row in self.rows if call.target in row.targets)
        mode = self.effects.touch()
        name = call.target.removeprefix("builtins:").replace(":", ".")
        if mode is not Mode.SYNCED:
            return call.plain()
        if row.fate is Fate.EACH:
            say = self.run.report.say_once if row.harmless else self.run.report.doubt
            say(self.name, users_line(), f"{name}: {row.why}")
            with self.context.internal():  # its parts need no line of their own
                return call.plain()
        if row.fate is Fate.DO:
            return self.effects.do_on_rank0(name, call.plain)
        return self.effects.ask_rank0(name, call.plain)

    @patch(
        "torch.utils.data._utils.fetch:_MapDatasetFetcher.fetch",
        why="ranks fetch different rows: what a data set does there is each rank's own",
    )
    def fetch_alone(self, call: Call) -> Any:
        """Fetch a batch; its reads and writes are as if autoddp were not there."""
        context = self.context
        here = context.on_script_thread()  # what the script does meanwhile is no other thread's
        if not context.in_job() or (here and context.passes_through()):
            return call.plain()
        with context.within(Code.FETCH) if here else context.internal():
            return call.plain()
