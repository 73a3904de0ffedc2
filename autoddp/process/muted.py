"""The muting of a worker process that multiprocessing started afresh for a rank above 0."""

from __future__ import annotations

import atexit
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from autoddp.comm.context import Context
from autoddp.comm.world import World
from autoddp.effects.files import Files
from autoddp.effects.folders import Folders
from autoddp.effects.run import Run
from autoddp.effects.temporary import Temporary
from autoddp.options import Options
from autoddp.patching import Installation
from autoddp.process.own_groups import Groups
from autoddp.view import View

if TYPE_CHECKING:
    from autoddp.comm.group import Group


def mute(rank: int, size: int, folder: str, view: str) -> None:
    """Send what this process writes, for its life, to scratch in `folder`, which its rank removes.

    What it prints goes to the rank's log, like what the rank prints.
    """
    world = World(rank, size, rank, size)
    # in place of the group of ranks, which this process has no connection to
    nobody = cast("Group", SimpleNamespace(rank=rank, size=size, context=Context()))
    # in the local view effects are each rank's own, and nobody waits for anybody
    run = Run(world, Options(view="local"), nobody, View(nobody))
    run.effects.overlay.share(folder)
    refusal = [] if view == "local" else [Groups(run)]  # there groups are left to the script
    features = [Files(run), Folders(run), Temporary(run), *refusal]
    atexit.register(Installation(features).install().undo)
