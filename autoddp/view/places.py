"""The places of the batch in what a call draws: sizes alone do not tell, as of a weight's noise."""

from __future__ import annotations

from collections.abc import Sequence

Place = tuple[int, int | None]  # dimensions of a draw; which of them holds the batch, None if none
Shapes = list[tuple[int, ...]]
UNKNOWN = -1


def places_of(whole: Shapes, part: Shapes, rows: tuple[int, int]) -> list[Place] | None:
    """Return the places of a call's draws, seen from their shapes for all `rows` and for fewer.

    None where a rank could not draw its own as of the whole: where the number of draws depends on
    the rows, or a draw holds them otherwise than one beside the other, as with heads of attention.
    """
    if len(whole) != len(part):
        return None
    found = [_grown(w, p, rows) for w, p in zip(whole, part, strict=True)]
    if UNKNOWN in found:
        return None
    return [(len(w), dim) for w, dim in zip(whole, found, strict=True)]


def _grown(whole: tuple[int, ...], part: tuple[int, ...], rows: tuple[int, int]) -> int | None:
    if len(whole) != len(part):
        return UNKNOWN
    dims = [d for d, (w, p) in enumerate(zip(whole, part, strict=True)) if w != p]
    if not dims:
        return None
    alone = len(dims) == 1 and (whole[dims[0]], part[dims[0]]) == rows
    return dims[0] if alone else UNKNOWN


def place(shape: Sequence[int], known: tuple[Place, ...], number: int) -> int | None:
    """Return the place in the draw of this number; UNKNOWN where the proof does not tell."""
    dims = len(shape)
    if number < len(known) and known[number][0] == dims:
        return known[number][1]
    found = {dim for count, dim in known if count == dims}
    return found.pop() if len(found) == 1 else UNKNOWN
