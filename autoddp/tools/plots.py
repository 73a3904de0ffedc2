"""The picture of `autoddp bench`: speed-up against ideal."""

from __future__ import annotations

import os
from collections.abc import Sequence

from autoddp.errors import BadInput
from autoddp.tools.told import check_folder


def check(path: str) -> None:
    """Check, before anything runs, that a picture can be drawn at `path`.

    Raises:
        BadInput: There is no matplotlib, no such folder, or no such kind of picture.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    except ImportError:
        raise BadInput(
            f"--plot is {path}, but matplotlib is missing; pip install 'autoddp[plot]'"
        ) from None
    check_folder("--plot", path)
    kinds = FigureCanvasAgg.get_supported_filetypes()
    if os.path.splitext(path)[1][1:].lower() not in kinds:
        raise BadInput(
            f"--plot is {path}, whose ending names no kind of picture; give one of "
            f"{', '.join(sorted(kinds))}, as in speed.png"
        )


def speed_up(path: str, rows: Sequence[tuple[str, int, float]]) -> None:
    """Draw speed-up against ideal, of rows with their name, their devices and their speed-up."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    made = Figure(figsize=(8, 6), layout="constrained")
    FigureCanvasAgg(made)  # without a window
    axes = made.subplots()
    most = max(devices for _, devices, _ in rows)
    axes.plot([1, most], [1, most], color="gray", linestyle="--", label="ideal")
    for name in dict.fromkeys(name for name, *_ in rows):
        points = sorted((devices, gained) for label, devices, gained in rows if label == name)
        axes.plot(*zip(*points, strict=True), marker="o", label=name)
    axes.set_xlabel("ranks")
    axes.set_ylabel("samples/s, as a multiple of one process's")
    axes.legend()
    made.savefig(path)
