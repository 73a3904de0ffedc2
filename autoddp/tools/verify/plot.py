"""The picture of both loss curves and their difference."""

from __future__ import annotations

from autoddp.tools.record.recording import Recording


def losses(left: Recording) -> list[float]:
    """Return all losses of rank 0, in their order."""
    records = [*left.steps.get(0, []), left.ends.get(0, {})]
    return [value for record in records for _, value in record.get("losses", [])]


def draw(path: str, want: Recording, got: Recording) -> None:
    """Draw both loss curves, and their difference, to the file `path`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    one, ranks = losses(want), losses(got)
    off = [abs(a - b) for a, b in zip(one, ranks, strict=False)]
    figure = Figure(figsize=(8, 6), layout="constrained")
    FigureCanvasAgg(figure)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    upper.plot(one, linewidth=3, alpha=0.5, label=want.name)
    upper.plot(ranks, linewidth=1, label=got.name)
    upper.set_ylabel("loss")
    upper.legend()
    lower.plot(off, color="black", linewidth=1)
    if any(off):
        lower.set_yscale("log")
    lower.set_ylabel("difference")
    lower.set_xlabel("backward pass")
    lower.locator_params("x", integer=True)
    figure.savefig(path)
