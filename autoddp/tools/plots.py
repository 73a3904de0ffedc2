"""The plot of `autoddp bench`: the speed-up, next to the ideal one."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence

from autoddp.errors import BadInput
from autoddp.tools.options import check_folder


def check(path: str) -> None:
    """Check, before anything runs, that a plot can be written to `path`.

    Raises:
        BadInput: matplotlib or the folder is missing, or the format is unknown.
    """
    check_folder("--plot", path)
    try:
        from matplotlib.figure import Figure

        Figure().savefig(io.BytesIO(), format=os.path.splitext(path)[1][1:])
    except ImportError:
        raise BadInput(
            f"--plot is {path}, but matplotlib is missing; pip install 'autoddp[plot]'"
        ) from None
    except ValueError as error:
        raise BadInput(f"--plot is {path}: {error}") from None


def speed_up(path: str, rows: Sequence[tuple[str, int, float]]) -> None:
    """Plot rows of label, number of devices and speed-up."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 6), layout="constrained")
    axes = figure.subplots()
    most = max(devices for _, devices, _ in rows)
    axes.plot([1, most], [1, most], color="gray", linestyle="--", label="ideal")
    for name in dict.fromkeys(name for name, *_ in rows):
        points = sorted((devices, gain) for label, devices, gain in rows if label == name)
        axes.plot(*zip(*points, strict=True), marker="o", label=name)
    axes.set_xlabel("ranks")
    axes.set_ylabel("samples/s, as a multiple of one process's")
    axes.legend()
    figure.savefig(path)
