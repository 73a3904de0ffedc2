"""The proof that a call is row-wise: it is tried on its first inputs, and put back after.

All runs of it draw the same random numbers, and it must show:

1. No coupling: with the other rows replaced, a row comes out the same, bit for bit.
2. No dependence on size or place: the forward of a part is the part of the forward, and what
   BatchNorm is given on the way is the part of what it is given of all.
3. Nothing is left behind, and nothing is decided in Python by what the rows hold.

Parameters that are still zero must not hide it: all is shown with other values of them, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from autoddp.comm.context import Code
from autoddp.view.generators import Generators
from autoddp.view.places import places_of
from autoddp.view.proof.counts import decided
from autoddp.view.proof.flow import coupled
from autoddp.view.proof.gates import gates, opened
from autoddp.view.proof.opaque import IN_LIBRARY, draws_in_library
from autoddp.view.proof.rounding import tolerance
from autoddp.view.proof.sizes import normalized_of_all
from autoddp.view.proof.snapshot import Snapshot
from autoddp.view.proof.trial import Forward, Refused, Same, Trial, alike, equal
from autoddp.view.proof.verdict import Verdict

# Rows of a larger batch that are enough to see whether one depends on another: a prime number, as
# no layout in groups is made for.
FEW = 7
NO_BATCH = "an output has no batch dimension"
OTHER_ROWS = "BatchNorm in it is given other rows than the batch's"
COUPLED = "its rows depend on each other"
NOT_THE_PART = "the forward of a part is not the part of the forward"
NEARLY = f"{NOT_THE_PART}, but nearly"
DRAWS_OTHERWISE = "what it draws does not lie by rows"
DECIDES_BY_ROWS = "it decides by how many rows its batch has"
PRINTS = "it prints what depends on the size of its batch"
NO_MEMORY = "there is not enough memory to try it"
MEMORY = (torch.OutOfMemoryError, MemoryError)
# times the rounding that is allowed: so far off may be what another kernel makes of fewer rows
NEAR = 4


def prove(trial: Trial, module: nn.Module) -> Verdict:
    """Try the call; every generator, buffer and Python value is as before afterwards."""
    if draws_in_library(module):
        return Verdict(reason=IN_LIBRARY)
    try:
        return _proven(trial, module)
    except MEMORY:
        return Verdict(reason=NO_MEMORY, sure=False)


def _proven(trial: Trial, module: nn.Module) -> Verdict:
    passed_on = [x for x, at in trial.pairs if at is None]
    view, state = trial.view, Snapshot(module, given=passed_on)
    if state.refused:
        return Verdict(reason=state.refused)
    written = view.context.written
    left: str | None = None
    try:
        with view.context.within(Code.PROOF), view.trial():
            try:
                verdict = _try_both(trial, gates(module))
            finally:
                left = state.put_back()
    except Refused as refused:
        verdict = Verdict(reason=str(refused))
    except MEMORY:
        raise
    except Exception as error:  # the call cannot be cut: a mask of fixed size, a loss over it
        verdict = Verdict(
            reason=f"a part of its rows raises {type(error).__name__}: {str(error)[:80]}"
        )
    finally:
        trial.before.put_back()
    if not left and view.context.written != written:
        return Verdict(reason="it writes to a file")
    return Verdict(reason=left) if left else verdict


def _try_both(trial: Trial, closed: list[Tensor]) -> Verdict:
    verdict = _try(trial)
    if verdict.reason or not closed:
        return verdict
    with opened(closed):
        again = _try(trial)
    return again if again.reason else verdict


def _try(trial: Trial) -> Verdict:
    size = trial.size
    whole = trial.forward(0, size)
    after = Generators()
    reason = _at_a_glance(trial, whole, after)
    if reason:
        return Verdict(reason=reason)
    ends = trial.ends(FEW)
    if size <= 2 * FEW or not all(trial.differs(*end) for end in ends):
        ends = trial.ends(size)
    parts, outs, reason = _by_parts(trial, whole, min(ends[0][1], size - size // 2))
    if reason == NEARLY:  # with one row less its kernels are the same, and so are its numbers
        ends = trial.ends(size - 1)
        parts, outs, reason = _by_parts(trial, whole, size - 1, 1 / size)
    if reason:
        return Verdict(reason=reason)
    if not any(trial.differs(*end) for end in ends):
        return Verdict(reason="all rows of the first batch are alike", sure=False)
    for start, count, keep in ends:
        same, other = parts[start, count].out, trial.forward(start, count, keep).out
        if not all(
            _same_row(s, o, at, keep - start) for s, o, at in zip(same, other, outs, strict=True)
        ):
            return Verdict(reason=COUPLED)
    if whole.normalized and trial.given.cuts.total != size:
        of_all = [len(x) * trial.given.cuts.total for x in whole.normalized]
        if of_all != [rows * size for rows in normalized_of_all(trial)]:
            return Verdict(reason=OTHER_ROWS)
    # a generator of its own, or one that is put back, is drawn from all the same
    draws = trial.inside or bool(whole.drawn) or not trial.before.same_torch(after)
    fewer = next(part for (_, rows), part in parts.items() if rows < size)
    return _by_size(trial, whole, fewer, Verdict(tuple(outs), whole.layout, draws))


def _by_size(trial: Trial, whole: Forward, fewer: Forward, verdict: Verdict) -> Verdict:
    """Complete a verdict by what two forwards of other sizes show.

    That is where the batch lies in each draw, and what is decided by how many rows there are.
    """
    decisions = decided(whole.asked, fewer.asked)
    if decisions is None:
        return Verdict(reason=DECIDES_BY_ROWS)
    places = places_of(whole.drawn, fewer.drawn, (whole.asked.rows, fewer.asked.rows))
    if places is None:
        return Verdict(reason=DRAWS_OTHERWISE)
    return replace(verdict, places=tuple(places), decisions=decisions)


def _at_a_glance(trial: Trial, whole: Forward, after: Generators) -> str:
    """Return why the call is not row-wise, as far as one forward tells, or nothing."""
    if not trial.before.same_python(after):
        return "it draws from random or numpy"
    if not any(isinstance(x, Tensor) for x in whole.out) and not isinstance(whole.out[0], Same):
        return "it returns no tensor"
    shown = zip(whole.out, whole.apart, strict=True)
    rows = [x for x, apart in shown if isinstance(x, Tensor) and not apart]
    return "" if all(trial.size in x.shape for x in rows) else NO_BATCH


Parts = dict[tuple[int, int], Forward]  # by the first row and the number of rows


def _by_parts(
    trial: Trial, whole: Forward, count: int, times: float = 1.0
) -> tuple[Parts, list[int | None], str]:
    """Run forwards of parts, and compare each with that part of the whole forward.

    Returns:
        The forwards, where the batch lies in each output, and why a forward is not the part, or
        nothing. A forward may be off by the rounding that is allowed, so many `times`.
    """
    size, known = trial.size, {(0, trial.size): whole}
    outs: list[int | None] = []
    for start, rows in dict.fromkeys([(0, count), (size - count, count), *trial.parts]):
        part = known[start, rows] = trial.forward(start, rows)
        if part.printed != whole.printed:
            return known, outs, PRINTS
        if part.layout != whole.layout:
            return known, outs, "its outputs change their structure with the rows"
        found = _batch_dims(whole, part, size, rows)
        if UNLIKE in found or (outs and found != outs):
            return known, outs, NO_BATCH
        outs = found
        held = frozenset[int]().union(*whole.sources)
        if rows != size and not held.isdisjoint(coupled(whole.flow, part.flow)):
            return known, outs, COUPLED
        place = (size, start, rows)
        reason = _unlike(whole, part, outs, place, times)
        if reason:
            near = times == 1.0 and not _unlike(whole, part, outs, place, NEAR)
            return known, outs, NEARLY if near else reason
    return known, outs, ""


def _unlike(
    whole: Forward, part: Forward, outs: list[int | None], place: tuple[int, int, int], times: float
) -> str:
    """Return why a part's forward is not the part of the whole's, or nothing."""
    dtypes = whole.dtypes | part.dtypes
    _, start, count = place

    def close(w: Any, p: Any, at: int | None, start: int, count: int) -> bool:
        return at is None or _close(w.narrow(at, start, count), p, dtypes, times)

    if not all(
        close(w, p, at, start, count) for w, p, at in zip(whole.out, part.out, outs, strict=True)
    ):
        return NOT_THE_PART
    return "" if _fed_alike(whole.normalized, part.normalized, place, close) else OTHER_ROWS


def _fed_alike(
    whole: list[Tensor], part: list[Tensor], place: tuple[int, int, int], close: Callable[..., bool]
) -> bool:
    """Return whether BatchNorm is given that part, for a part of the batch.

    A row may lie in it as several. Else its statistics over all ranks would be of other rows than
    in one process.
    """
    size, start, count = place
    if len(whole) != len(part):
        return False
    for w, p in zip(whole, part, strict=True):
        times = w.shape[0] // size
        if w.shape[0] != times * size or p.shape != (times * count, *w.shape[1:]):
            return False
        beside = close(w, p, 0, times * start, times * count)
        apart = close(
            w.unflatten(0, (times, size)), p.unflatten(0, (times, count)), 1, start, count
        )
        if not beside and not apart:
            return False
    return True


UNLIKE = -1


def _batch_dims(whole: Forward, part: Forward, size: int, count: int) -> list[int | None]:
    """Return where the batch lies in each output; None for one of no rows, and the same."""
    found: list[int | None] = []
    for k, (w, p) in enumerate(zip(whole.out, part.out, strict=True)):
        if whole.apart[k] and part.apart[k] and w.shape == p.shape and torch.equal(w, p):
            found.append(None)
        else:
            same = alike(whole.own[k], part.own[k])
            found.append(_batch_dim(w, p, size, count) if same else UNLIKE)
    return found


def _batch_dim(whole: Any, part: Any, size: int, count: int) -> int | None:
    """Return where the batch lies in an output.

    None for what is no tensor, and equal; UNLIKE for neither.
    """
    if not isinstance(whole, Tensor):
        return None if equal(whole, part) else UNLIKE
    if (
        not isinstance(part, Tensor)
        or whole.dim() != part.dim()
        or whole.layout is not torch.strided
    ):
        return UNLIKE
    places = (d for d in range(whole.dim()) if whole.shape[d] == size and part.shape[d] == count)
    return next(places, UNLIKE)


def _close(mine: Tensor, part: Tensor, dtypes: set[torch.dtype], times: float) -> bool:
    if not (mine.is_floating_point() or mine.is_complex()):
        return torch.equal(mine, part)
    rounding = tolerance(dtypes | {mine.dtype}, mine.device.type) * times
    scale = mine.abs().nan_to_num(0, 0, 0).max().item() if mine.numel() else 0.0
    return torch.allclose(mine, part, rtol=rounding, atol=rounding * scale, equal_nan=True)


def _same_row(whole: Any, other: Any, at: int | None, row: int) -> bool:
    if at is None:
        return True
    a, b = whole.select(at, row), other.select(at, row)
    return torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)
