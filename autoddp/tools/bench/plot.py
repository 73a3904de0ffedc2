"""Speed-up against ideal, as a picture."""

from __future__ import annotations

from collections.abc import Sequence

from autoddp.tools.bench.figures import Row


def curves(rows: Sequence[Row]) -> dict[str, list[tuple[int, float]]]:
    """Return for each kind of row its devices and its speed-up, the fewest devices first."""
    found: dict[str, list[tuple[int, float]]] = {}
    for row in rows[1:]:
        gained = row.speed_up(rows[0]) if row.rounds else None
        if gained is not None:
            where = f", {row.way.nodes} nodes" if row.way.nodes > 1 else ""
            found.setdefault(row.way.kind + where, []).append((row.way.devices, gained))
    return {kind: sorted(points) for kind, points in found.items()}


def draw(path: str, rows: Sequence[Row]) -> None:
    """Draw speed-up against ideal to the file `path`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    most = max(row.way.devices for row in rows)
    axes.plot([1, most], [1, most], color="gray", linestyle="--", label="ideal")
    for kind, points in curves(rows).items():
        axes.plot(*zip((1, 1.0), *points, strict=True), marker="o", label=kind)
    axes.set_xlabel("ranks")
    axes.set_ylabel("samples/s, as a multiple of one process's")
    axes.legend()
    figure.savefig(path)
