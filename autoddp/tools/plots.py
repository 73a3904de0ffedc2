"""The pictures: two loss curves and their difference, and speed-up against ideal."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from typing import Any

from autoddp.errors import BadInput
from autoddp.tools.record.recording import Recording

KINDS = ("png", "pdf", "svg", "jpg", "jpeg", "webp", "tif", "eps")


def check(path: str) -> None:
    """Check, before anything runs, that a picture can be drawn at `path`.

    Raises:
        BadInput: There is no matplotlib, no such folder, or no such kind of picture.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise BadInput(f"--plot is {path}, but matplotlib is missing; pip install 'autoddp[plot]'")
    folder = os.path.dirname(path)
    if folder and not os.path.isdir(folder):
        raise BadInput(f"--plot is {path}, but there is no folder {folder}; make it first")
    kind = os.path.splitext(path)[1][1:].lower()
    if kind not in KINDS:
        raise BadInput(
            f"--plot is {path}, whose ending names no kind of picture; give one of "
            f"{', '.join(KINDS)}, as in losses.png"
        )


def figure() -> Any:
    """Make an empty figure, which no window shows."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    made = Figure(figsize=(8, 6), layout="constrained")
    FigureCanvasAgg(made)
    return made


def losses(path: str, *runs: Recording) -> None:
    """Draw the loss curves of two runs, and their difference."""
    entries = [[*run.steps.get(0, []), run.ends.get(0, {})] for run in runs]
    curves = [[loss for x in some for _, loss in x.get("losses", [])] for some in entries]
    off = [abs(a - b) for a, b in zip(*curves, strict=False)]
    made = figure()
    upper, lower = made.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    for run, curve, width in zip(runs, curves, (3, 1), strict=True):
        upper.plot(curve, linewidth=width, alpha=1 / width, label=run.name)
    upper.set_ylabel("loss")
    upper.legend()
    lower.plot(off, color="black", linewidth=1)
    if any(off):
        lower.set_yscale("log")
    lower.set_ylabel("difference")
    lower.set_xlabel("backward pass")
    lower.locator_params("x", integer=True)
    made.savefig(path)


def speed_up(path: str, rows: Sequence[tuple[str, int, float]]) -> None:
    """Draw speed-up against ideal, of rows with their name, their devices and their speed-up."""
    made = figure()
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
