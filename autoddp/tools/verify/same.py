"""Compare values and arrays, but for rounding.

Every comparison returns the largest difference it met, relative to the larger value (a value below
a thousandth counts as a thousandth: a sum that cancels to nothing has no relative accuracy). It
raises `Unlike` with the place and both values where that is above `rtol`, or where something that
is no number differs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

import numpy as np
import torch

SMALL = 1e-3
# What is compared as a whole. An object without an `==` is compared by what it holds, since its own
# would ask whether it is the same one; and so is any other, as its own would ask for the same bits.
LEAVES = (int, str, bytes, type, set, frozenset)

Parts = list[tuple[str, Any]]


class Unlike(AssertionError):
    """A difference by more than rounding; the message is the place and both values."""


def check(equal: bool, message: str) -> None:
    """Raise `Unlike` with the message unless `equal` is true."""
    if not equal:
        raise Unlike(message)


def same_value(
    want: Any, got: Any, rtol: float, where: str, seen: dict[Any, Any] | None = None
) -> float:
    """Compare all that a checkpoint may hold, to its leaves: types, order, keys, dtypes, values.

    Args:
        want: The value of one process.
        got: The other run's value.
        rtol: The relative difference that is allowed.
        where: The place, in words.
        seen: The pairs that are compared already: objects may hold each other.
    """
    check(type(got) is type(want), f"{where}: {type(got)} instead of {type(want)}")
    if isinstance(want, torch.Tensor):
        return same_tensor(want, got, rtol, where)
    if isinstance(want, np.ndarray | np.generic):
        return same_array(np.asarray(want), np.asarray(got), rtol, where)
    if isinstance(want, float):
        return near(want, got, rtol, f"{where}: {got!r} instead of {want!r}")
    if isinstance(want, LEAVES) or (found := _held(want)) is None:
        check(got == want, f"{where}: {got!r} instead of {want!r}")
        return 0.0
    seen, pair = {} if seen is None else seen, (id(want), id(got))
    if pair in seen:
        return 0.0
    seen[pair] = want, got  # as long as they are here, no others have their ids
    return _same_parts(found, _held(got) or [], rtol, where, seen)


def _same_parts(want: Parts, got: Parts, rtol: float, where: str, seen: dict[Any, Any]) -> float:
    """Compare what two values hold, part by part."""
    pairs = zip_longest(
        *([name for name, _ in parts] for parts in (want, got)), fillvalue="nothing"
    )
    a, b = next(((a, b) for a, b in pairs if a != b), ("", ""))
    check(a == b, f"{where}: {b} instead of {a}")
    worst = 0.0
    for (name, a), (_, b) in zip(want, got, strict=True):
        worst = max(worst, same_value(a, b, rtol, where + name, seen))
    return worst


def _held(value: Any) -> Parts | None:
    """Return the parts of a value by name, None if it has none."""
    if isinstance(value, Mapping):
        names = [f"[{key!r}]" if isinstance(key, LEAVES) else "[...]" for key in value]
        others = [("[...]", key) for key in value if not isinstance(key, LEAVES)]
        return [*others, *zip(names, value.values(), strict=True)]
    if isinstance(value, list | tuple):
        return [(f"[{i}]", item) for i, item in enumerate(value)]
    if isinstance(value, torch.nn.Module):
        return [("", value.state_dict())]
    return _pickled(value)


def _pickled(value: Any) -> Parts | None:
    """Return what pickle would write of an object, None if it would write no parts."""
    try:
        made = value.__reduce_ex__(2)
    except Exception:  # whatever a class of anybody's raises that cannot be pickled
        return None
    if isinstance(made, str):  # the name of what there is only one of
        return None
    function, arguments, state, items, pairs = (*made, None, None, None)[:5]
    return [
        ("", part) for part in (function, arguments, state, list(items or ()), list(pairs or ()))
    ]


def same_tensor(want: torch.Tensor, got: torch.Tensor, rtol: float, where: str) -> float:
    """Compare all that a script can ask of two tensors, and their values."""
    a, b = (
        (x.dtype, x.device, x.requires_grad, x.layout, x.is_nested)
        + ((tuple(x.shape), x.stride()) if _is_plain(x) else ())
        for x in (want, got)
    )
    check(a == b, f"{where}: {b} instead of {a}")
    if _is_plain(want):
        return same_array(_array(want), _array(got), rtol, where)
    return _same_parts(_pickled(want) or [], _pickled(got) or [], rtol, where, {})


def _is_plain(x: torch.Tensor) -> bool:
    """Return whether a tensor has its values in one block of memory, one stride for each size."""
    return x.layout == torch.strided and not x.is_nested and not x.is_meta


def _array(x: torch.Tensor) -> np.ndarray:
    """Return the values of a tensor, of a type that numpy lacks as a wider one, or as bytes."""
    x = x.detach().resolve_conj().resolve_neg()
    x = x.dequantize() if x.is_quantized else x
    try:
        return x.numpy()
    except TypeError:
        kind = torch.complex64 if x.is_complex() else torch.float32
    try:
        return x.to(kind).numpy()
    except RuntimeError:  # torch computes nothing of it, either
        return x.view(torch.uint8).numpy()


def same_array(want: np.ndarray, got: np.ndarray, rtol: float, where: str) -> float:
    """Compare dtypes, shapes and values of two arrays; whole numbers must be equal."""
    kinds = (got.dtype, got.shape), (want.dtype, want.shape)
    check(kinds[0] == kinds[1], f"{where}: {kinds[0]} instead of {kinds[1]}")
    if want.dtype.kind not in "fc":
        check(np.array_equal(want, got), f"{where}: {got} instead of {want}")
        return 0.0
    check(np.array_equal(np.isfinite(want), np.isfinite(got)), f"{where}: not the same finite")
    want, got = np.nan_to_num(want), np.nan_to_num(got)
    scale = np.maximum(np.maximum(abs(want), abs(got)), SMALL)
    off = (abs(want.astype(complex) - got) / scale).ravel()
    if not off.size or off.max() == 0:
        return 0.0
    at = int(off.argmax())
    place = f"{where}, element {at}: {got.ravel()[at]!r} instead of {want.ravel()[at]!r}"
    check(off.max() <= rtol, f"{place} (off by {off.max():.1e}, allowed {rtol:.0e})")
    return float(off.max())


def near(want: float, got: float, rtol: float, place: str) -> float:
    """Compare two numbers, relative to the larger one; NaN is near NaN."""
    if want == got or (math.isnan(want) and math.isnan(got)):
        return 0.0
    off = abs(want - got) / max(abs(want), abs(got), SMALL)
    check(off <= rtol, f"{place} (off by {off:.1e}, allowed {rtol:.0e})")
    return off
