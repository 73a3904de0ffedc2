"""An account of where the time of each rank went, and what of the work they shared."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

if TYPE_CHECKING:
    from autoddp.effects.run import Run

KEY = "account"
WAIT = timedelta(seconds=5)  # for the other ranks to come to their end
HEADS = {
    "seconds": "in all",
    "computing": "computing",
    "gradients": "gradients",
    "ranks": "other ranks",
    "loader": "loader",
}


@dataclass(frozen=True)
class RankTimes:
    """The seconds of one rank, by what they went to: the last four add up to the first.

    Attributes:
        rank: Number of the rank.
        seconds: From its start to the end of the script.
        computing: All that is none of the others, the script's own Python included.
        gradients: Waiting for gradients inside of a backward.
        ranks: Waiting for other ranks in all other places.
        loader: Waiting for the batches of loaders.
    """

    rank: int
    seconds: float
    computing: float
    gradients: float
    ranks: float
    loader: float


def of(run: Run, seconds: float) -> RankTimes:
    """Return the times of this rank, `seconds` after its start."""
    position = run.group.position
    gradients = position.waited_in_backward
    ranks = position.waited - gradients
    loader = sum(run.waited.values())
    computing = max(0.0, seconds - gradients - ranks - loader)
    parts = (seconds, computing, gradients, ranks, loader)
    return RankTimes(run.world.rank, *(round(part, 3) for part in parts))


def tell(run: Run, mine: RankTimes) -> None:
    """Tell rank 0 the times of this rank, which ends."""
    if run.world.rank:
        with suppress(dist.DistError):  # the store went with its host
            run.group.store.set(f"{KEY}/{mine.rank}", json.dumps(asdict(mine)))


def of_all(run: Run, mine: RankTimes) -> list[RankTimes]:
    """Return on rank 0 the times of all ranks that come to their end now, too."""
    store, keys = run.group.store, [f"{KEY}/{rank}" for rank in range(1, run.world.world_size)]
    with suppress(dist.DistError):
        try:
            store.wait(keys, WAIT)
        except dist.DistError:
            keys = [key for key in keys if store.check([key])]  # the others have failed
        return [mine, *(RankTimes(**json.loads(store.get(key))) for key in keys)]
    return [mine]


def table(found: list[RankTimes]) -> Iterator[str]:
    """Yield the lines of a table of seconds, a rank in each."""
    yield "seconds of   " + "  ".join(HEADS.values())
    for times in found:
        row: dict[str, Any] = asdict(times)
        cells = [f"{row[name]:{len(head)}.1f}" for name, head in HEADS.items()]
        yield f"rank {times.rank:<6}  " + "  ".join(cells)
