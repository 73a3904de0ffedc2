"""Draw the picture of one batch on four ranks: `python docs/picture.py` writes picture.svg."""

from __future__ import annotations

from pathlib import Path

WIDE, HIGH, RANKS, ROWS = 860, 336, 4, 64
COLOURS = ("#4c72b0", "#55a868", "#c44e52", "#8172b3")
LEFT, COLUMN, GAP = 150, 160, 12  # of the columns, one for each rank
INK, PALE = "#24292f", "#eef1f4"


def box(x: int, y: int, wide: int, high: int, fill: str) -> str:
    """Return a filled box with round corners."""
    return f'<rect x="{x}" y="{y}" width="{wide}" height="{high}" rx="5" fill="{fill}"/>'


def text(x: int, y: int, words: str, where: str = "middle", ink: str = INK) -> str:
    """Return a line of text that starts at, or is centred on, a place."""
    return f'<text x="{x}" y="{y}" text-anchor="{where}" fill="{ink}">{words}</text>'


def arrow(x: int, top: int, bottom: int) -> str:
    """Return an arrow that points down."""
    return f'<path d="M{x} {top}V{bottom - 2}" stroke="{INK}" marker-end="url(#tip)"/>'


def column(rank: int) -> list[str]:
    """Return what one rank does: its rows are fetched, and a copy of the model computes on them."""
    part = ROWS // RANKS
    x, wide = LEFT + rank * (COLUMN + GAP), COLUMN
    middle, rows = x + wide // 2, f"rows {rank * part}-{(rank + 1) * part - 1}"
    return [
        box(x, 62, wide, 28, COLOURS[rank]),
        text(middle, 81, rows, ink="white"),
        arrow(middle, 92, 116),
        box(x, 118, wide, 46, PALE),
        text(middle, 138, f"rank {rank}: your script"),
        text(middle, 155, f"model on {part} rows"),
        arrow(middle, 166, 190),
        arrow(middle, 222, 246),
    ]


def picture() -> str:
    """Return the whole picture as SVG."""
    across = RANKS * COLUMN + (RANKS - 1) * GAP
    middle = LEFT + across // 2
    named = (("the batch", 42), ("fetched", 81), ("computed", 146), ("gradients", 211))
    parts = [
        box(0, 0, WIDE, HIGH, "white"),
        *(text(20, y, words, "start") for words, y in (*named, ("step", 267), ("outside", 311))),
        box(LEFT, 24, across, 28, INK),
        text(middle, 43, f"one batch of {ROWS} rows, as the script sees it", ink="white"),
        *(part for rank in range(RANKS) for part in column(rank)),
        box(LEFT, 192, across, 28, "#dd8452"),
        text(
            middle, 211, "all-reduce: the gradient of the whole batch, on every rank", ink="white"
        ),
        box(LEFT, 248, across, 28, PALE),
        text(middle, 267, "optimizer.step(): the same on every rank, so weights stay the same"),
        box(LEFT, 290, across, 30, PALE),
        text(middle, 310, "print, torch.save, download: once, by rank 0, and all see its result"),
    ]
    tip = (
        '<defs><marker id="tip" markerWidth="8" markerHeight="8" refX="6" refY="4" orient="auto">'
        f'<path d="M0 0L8 4L0 8z" fill="{INK}"/></marker></defs>'
    )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {HIGH}" width="{WIDE}" '
        'font-family="sans-serif" font-size="14">'
    )
    return "\n".join([head, tip, *parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    Path(__file__).with_name("picture.svg").write_text(picture())
