"""The muting of a rank above 0 outside a job: it runs the script towards a job without a trace."""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from autoddp.comm.context import Context
from autoddp.comm.world import World
from autoddp.effects.files import Files
from autoddp.effects.folders import Folders
from autoddp.effects.run import Run
from autoddp.effects.temporary import Temporary
from autoddp.options import Options
from autoddp.patching import Installation
from autoddp.view import View

if TYPE_CHECKING:
    from autoddp.comm.group import Group


@dataclass(frozen=True)
class Nobody:
    """The stand-in for the group of ranks while there is none to talk to yet."""

    rank: int
    size: int
    context: Context = field(default_factory=Context)


@contextmanager
def muted(rank: int, size: int, folder: str | None = None) -> Iterator[None]:
    """Send what the script writes inside to private scratch, and what it prints to this rank's log.

    With `folder`, scratch lies in there, and is left for the folder's owner to remove.
    """
    world = World(rank, size, rank, size)
    nobody = cast("Group", Nobody(rank, size))
    # in the local view effects are each rank's own, and nobody waits for anybody
    run = Run(world, Options(view="local"), nobody, View(nobody))
    if folder is not None:
        run.effects.scratch.below(folder)
    with Installation([Files(run), Folders(run), Temporary(run)]):
        yield


def mute(rank: int, size: int, folder: str) -> None:
    """Mute this process for its life, a worker process that multiprocessing started for a rank."""
    kept = ExitStack()
    kept.enter_context(muted(rank, size, folder))
    atexit.register(kept.close)
