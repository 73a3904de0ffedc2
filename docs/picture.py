"""Draw the picture of one batch on four ranks: `python docs/picture.py` writes picture.svg."""

from __future__ import annotations

from pathlib import Path

HIGH, RANKS, ROWS = 324, 4, 64
COLOURS = ("#4c72b0", "#55a868", "#c44e52", "#8172b3")
LEFT, COLUMN, GAP = 12, 132, 10  # of the columns, one for each rank
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
        box(x, 50, wide, 28, COLOURS[rank]),
        text(middle, 69, f"rank {rank}: {rows}", ink="white"),
        arrow(middle, 80, 104),
        box(x, 106, wide, 46, PALE),
        text(middle, 126, "forward, loss,"),
        text(middle, 143, f"backward: {part} rows"),
        arrow(middle, 154, 178),
        arrow(middle, 210, 234),
    ]


def picture() -> str:
    """Return the whole picture as SVG."""
    across = RANKS * COLUMN + (RANKS - 1) * GAP
    middle, whole = LEFT + across // 2, across + 2 * LEFT
    parts = [
        box(0, 0, whole, HIGH, "white"),
        box(LEFT, 12, across, 28, INK),
        text(middle, 31, f"a batch of {ROWS} rows, as the script sees it", ink="white"),
        *(part for rank in range(RANKS) for part in column(rank)),
        box(LEFT, 180, across, 28, "#dd8452"),
        text(
            middle, 199, "all-reduce: every rank gets the gradient of the whole batch", ink="white"
        ),
        box(LEFT, 236, across, 28, PALE),
        text(middle, 255, "optimizer.step(): the same update and weights on every rank"),
        box(LEFT, 280, across, 30, PALE),
        text(middle, 300, "print, torch.save, download: once, by rank 0, for all ranks"),
    ]
    tip = (
        '<defs><marker id="tip" markerWidth="8" markerHeight="8" refX="6" refY="4" orient="auto">'
        f'<path d="M0 0L8 4L0 8z" fill="{INK}"/></marker></defs>'
    )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole} {HIGH}" width="{whole}" '
        'font-family="sans-serif" font-size="13">'
    )
    return "\n".join([head, tip, *parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    Path(__file__).with_name("picture.svg").write_text(picture())
