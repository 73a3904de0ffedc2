"""The picture of `autoddp bench`: speed-up against ideal."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence

from autoddp.errors import BadInput
from autoddp.tools.options import check_folder


def check(path: str) -> None:
    """Check, before anything runs, that a picture can be drawn at `path`.

    Raises:
        BadInput: There is no matplotlib, no such folder, or no such kind of picture.
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
    """Draw speed-up against ideal, of rows with their name, their devices and their speed-up."""
    from matplotlib.figure import Figure

    made = Figure(figsize=(8, 6), layout="constrained")
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
