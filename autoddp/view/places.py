"""The places of the batch in what a call draws: sizes alone do not tell, as of a weight's noise."""

from __future__ import annotations

from collections.abc import Sequence

Place = tuple[int, int | None]  # dimensions of a draw; which of them holds the batch, None if none
Shapes = list[tuple[int, ...]]
UNKNOWN = -1


def places_of(whole: Shapes, part: Shapes, at: int) -> tuple[Place, ...]:
    """Return the places of a call's draws, seen from their shapes for all rows and for fewer.

    There are none where the number of draws depends on the rows.
    """
    if len(whole) != len(part):
        return ()
    return tuple((len(w), _grown(w, p, at)) for w, p in zip(whole, part, strict=True))


def _grown(whole: tuple[int, ...], part: tuple[int, ...], at: int) -> int | None:
    dims = [d for d, (w, p) in enumerate(zip(whole, part, strict=False)) if w != p]
    return at if at in dims else next(iter(dims), None)


def place(shape: Sequence[int], known: tuple[Place, ...], number: int) -> int | None:
    """Return the place in the draw of this number; UNKNOWN where the proof does not tell."""
    dims = len(shape)
    if number < len(known) and known[number][0] == dims:
        return known[number][1]
    found = {dim for count, dim in known if count == dims}
    return found.pop() if len(found) == 1 else UNKNOWN
