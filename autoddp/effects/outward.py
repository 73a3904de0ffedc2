"""The base of features that touch the outside world, and the service of their rows."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, ClassVar

from autoddp.comm.context import Code
from autoddp.effects.engine import Mode
from autoddp.effects.rows import EffectRow, Fate
from autoddp.patching import Call, Feature, Patch, patch
from autoddp.report import temporary, users_line

if TYPE_CHECKING:
    from autoddp.effects.run import Run


class Outward(Feature):
    """The base of features that touch the outside world.

    Attributes:
        rows: The patches that are no more than a row; a method with `@patch` is for all others.
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
        """Do with a call of a row's function what its fate says."""
        row = next(row for row in self.rows if call.target in row.targets)
        mode = self.effects.touch() if row.when(call) else Mode.PASS_THROUGH
        name = call.target.removeprefix("builtins:").replace(":", ".")
        if mode is not Mode.SYNCED:
            return call.plain()
        if row.fate is Fate.EACH:
            say = self.run.report.say_once if row.harmless else self.run.report.doubt
            say(self.name, users_line(), f"{name}: {row.why}")
            with self.context.internal():  # what it is made of is said by this line, too
                return call.plain()
        if row.fate is Fate.DO:
            return self.effects.do_on_rank0(name, call.plain)
        return row.unpack(self.effects.ask_rank0(name, lambda: row.pack(call.plain())))

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
