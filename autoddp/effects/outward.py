"""The base of features that touch the outside world, and the service of their rows."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, ClassVar

from autoddp.comm.context import Code
from autoddp.comm.place import HERE
from autoddp.comm.topology import nodes
from autoddp.effects import paths
from autoddp.effects.engine import Effects, Mode
from autoddp.effects.journal import Board, Journal
from autoddp.effects.past import Past
from autoddp.effects.rows import EffectRow, Fate
from autoddp.patching import Call, Feature, Patch, patch
from autoddp.report import temporary

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
        """Share the journal, and watch the collector."""
        with self.effects.context.internal():
            temporary.look()
        _keep_journal(self.effects)
        undo.callback(self.effects.end)
        self.context.watch_collector(undo)

    @classmethod
    def patches(cls) -> list[Patch]:
        """Return the patches of the methods, and those of the rows."""
        return [*super().patches(), *(row.patch(cls.name) for row in cls.rows)]

    def mode(self, row: EffectRow) -> Mode:
        """Decide like `Effects` for a call of this row."""
        return self.effects.mode() if row.by_all else self.effects.users()

    def serve(self, call: Call) -> Any:
        """Do with a call of a row's function what its fate says."""
        row = next(row for row in self.rows if call.target in row.targets)
        mode = self.mode(row)
        if mode is Mode.PASS_THROUGH:
            return call.plain()
        if not row.when(call):
            return call.plain()
        name = call.target.removeprefix("builtins:").replace(":", ".")
        match row.fate, mode:
            case Fate.ASK, Mode.SYNCED:
                return row.unpack(self.effects.ask_rank0(name, lambda: row.pack(call.plain())))
            case Fate.DO, Mode.SYNCED:
                return self.effects.do_on_rank0(name, call.plain)
        return None if row.once and (self.rank or mode is Mode.SUPPRESSED) else call.plain()

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


def _keep_journal(effects: Effects) -> None:
    """Begin a journal on rank 0, which the ranks of its node read; all ranks call this, once."""
    if not effects.synced or effects.begun:
        return
    effects.begun = True
    group, placed = effects.group, nodes(effects.group)

    def make() -> str:
        folder = paths.fresh(HERE.private or temporary.temporary_folder())
        effects.journal = Journal(
            Board(folder, group.size, make=True), placed.count(0), effects.threads
        )
        return folder

    with effects.context.internal():
        folder = group.call("the journal", make)
        if group.rank and placed[group.rank] == 0:
            with suppress(FileNotFoundError):  # rank 0 has come to its end already
                board = Board(folder, group.size, make=False)
                effects.overlay.before = Past(board, group.rank, effects.scratch.new)
                effects.overlay.before.come(group.passed)
