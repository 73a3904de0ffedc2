"""The picture of --plot: the time of each step by what it went to, ranks side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from autoddp.tools.record.phases import PARTS
from autoddp.tools.record.recording import Entry, entries

COMPUTING = "computing"
MOST = 200  # points of a curve: of more steps each shows the mean of some
WIDTH = 4  # of a rank, in inches
ROW = 4  # ranks side by side
Curves = dict[str, list[float]]


def of_ranks(folder: Path) -> dict[int, Curves]:
    """Return for each rank whose file is there the seconds of each step, by what they went to.

    The first step is left out where there are more: all begins in it, from the imports on.
    """
    steps, _ = entries(folder)
    found = {
        rank: [step["times"] for step in mine if "times" in step] for rank, mine in steps.items()
    }
    return {rank: _curves(mine[1:] or mine) for rank, mine in sorted(found.items()) if mine}


def _curves(steps: Sequence[Entry]) -> Curves:
    curves = {part: [step[part] for step in steps] for part in PARTS}
    spent = zip(*curves.values(), strict=True)
    rest = [step["seconds"] - sum(parts) for step, parts in zip(steps, spent, strict=True)]
    return {COMPUTING: [max(0.0, seconds) for seconds in rest]} | curves


def means(values: Sequence[float], each: int) -> list[float]:
    """Return the means of each so many values, the last ones maybe of fewer."""
    cut = [values[at : at + each] for at in range(0, len(values), each)]
    return [sum(some) / len(some) for some in cut]


def draw(path: str, name: str, curves: dict[int, Curves]) -> None:
    """Draw the curves of all ranks to the file `path`, all by one scale."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    across = min(ROW, len(curves))
    down = -(-len(curves) // across)
    figure = Figure(figsize=(WIDTH * across + 1, 3 * down + 1), layout="constrained")
    FigureCanvasAgg(figure)
    every = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).flatten()
    for axes, (rank, mine) in zip(every, curves.items(), strict=False):
        steps = len(mine[COMPUTING])
        each = -(-steps // MOST)
        heights = [means([1000 * x for x in values], each) for values in mine.values()]
        at = range(2, steps + 2, each)
        axes.stackplot(at, *heights, labels=list(mine), step="mid" if len(at) > 1 else None)
        axes.set_title(f"rank {rank}")
        axes.set_xlabel("step, without the first")
        axes.locator_params("x", integer=True)
        axes.label_outer()
    for axes in every[len(curves) :]:
        axes.set_visible(False)
    every[0].set_ylabel("ms")
    figure.legend(*every[0].get_legend_handles_labels(), loc="outside right upper")
    figure.suptitle(f"{name}: where the time of each step went")
    figure.savefig(path)
