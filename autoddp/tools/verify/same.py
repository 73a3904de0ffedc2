"""The differences of values and arrays, with their places and sizes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from autoddp.tools.verify.findings import FILE, LEAST_PART, OTHER, SMALL, Difference

FLOATS = (torch.float32, torch.float64)
# Types that are compared by `==`. All others are compared by their content, as their `==` may
# compare identities or bits.
LEAVES = (int, str, bytes, type, set, frozenset)
Parts = list[tuple[str, Any]]
Found = Iterator[Difference]


def rounding_size(value: Any) -> float:
    """Return the size below which numbers in a value may consist of rounding errors."""
    found = (x for x in tree_leaves(value) if isinstance(x, torch.Tensor) and x.dtype in FLOATS)
    norms = [float(x.detach().double().norm()) for x in found if x.layout == torch.strided]
    return max(SMALL, LEAST_PART * math.hypot(*filter(math.isfinite, norms)))


def unlike(
    want: Any, got: Any, where: str, seen: dict[Any, Any] | None = None, least: float = SMALL
) -> Found:
    """Yield the differences of two values: types, order, keys, dtypes, and nested values.

    Sizes are relative to at least `least`. Objects may refer to each other: `seen` has the pairs
    that were compared already.
    """
    if type(got) is not type(want):
        yield _other(where, type(want), type(got))
    elif isinstance(want, torch.Tensor):
        yield from _tensors(want, got, where, least)
    elif isinstance(want, np.ndarray | np.generic | float):
        yield from _arrays(np.asarray(want), np.asarray(got), where, least)
    elif isinstance(want, LEAVES) or (parts := _content(want)) is None:
        if got != want:
            yield _other(where, repr(want), repr(got))
    else:
        seen, pair = {} if seen is None else seen, (id(want), id(got))
        if pair not in seen:
            seen[pair] = want, got  # keeps both alive, and so their ids unique
            yield from _parts(parts, _content(got) or [], where, seen, least)


def _other(where: str, want: object, got: object) -> Difference:
    return Difference(FILE, where, str(want), str(got), OTHER)


def _parts(want: Parts, got: Parts, where: str, seen: dict[Any, Any], least: float) -> Found:
    """Yield the differences of the parts of two values."""
    nothing = ("nothing", None)
    pairs = list(zip_longest(want, got, fillvalue=nothing))
    wrong = next(((a, b) for (a, _), (b, _) in pairs if a != b), None)
    if wrong is not None:
        yield _other(where, *wrong)
        return
    for (name, a), (_, b) in pairs:
        yield from unlike(a, b, where + name, seen, least)


def _content(value: Any) -> Parts | None:
    """Return the parts of a value by name, None if it has none."""
    if isinstance(value, Mapping):
        labels = [f"[{key!r}]" if isinstance(key, LEAVES) else "[...]" for key in value]
        return list(zip(labels, value.values(), strict=True))
    if isinstance(value, list | tuple):
        return [(f"[{i}]", item) for i, item in enumerate(value)]
    return _pickled(value)


def _pickled(value: Any) -> Parts | None:
    """Return the parts of an object that pickle would write, None if there are none."""
    try:
        reduced = value.__reduce_ex__(2)
    except Exception:  # a class may raise anything
        return None
    if isinstance(reduced, str):  # the name of a global
        return None
    function, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
    return [
        ("", part) for part in (function, arguments, state, list(items or ()), list(pairs or ()))
    ]


def _tensors(want: torch.Tensor, got: torch.Tensor, where: str, least: float) -> Found:
    """Yield the differences of two tensors in attributes and values."""
    # other tensors have no strides
    plain = want.layout == torch.strided and not want.is_nested and not want.is_meta
    a, b = (
        (x.dtype, x.device, x.requires_grad, x.layout, x.is_nested)
        + ((tuple(x.shape), x.stride()) if plain else ())
        for x in (want, got)
    )
    if a != b:
        yield _other(where, a, b)
    elif plain:
        yield from _arrays(_array(want), _array(got), where, least)
    else:
        yield from _parts(_pickled(want) or [], _pickled(got) or [], where, {}, least)


def _array(x: torch.Tensor) -> np.ndarray:
    """Return the values of a tensor; as a wider type or as bytes if numpy lacks its type."""
    x = x.detach().resolve_conj().resolve_neg()
    x = x.dequantize() if x.is_quantized else x
    with suppress(TypeError, RuntimeError):  # numpy or torch lacks the type
        return (x.float() if x.is_floating_point() and x.itemsize < 4 else x).numpy()
    return x.view(torch.uint8).numpy()


def _arrays(want: np.ndarray, got: np.ndarray, where: str, least: float) -> Found:
    """Yield the largest difference of two arrays; whole numbers must be equal."""
    kinds = (want.dtype, want.shape), (got.dtype, got.shape)
    if kinds[0] != kinds[1]:
        yield _other(where, *kinds)
    elif want.dtype.kind not in "fc":
        if not np.array_equal(want, got):
            yield _other(where, want, got)
    elif not np.array_equal(np.isfinite(want), np.isfinite(got)):
        yield _other(where, "finite numbers at other elements", "finite numbers at these")
    else:
        a, b = np.nan_to_num(want).ravel(), np.nan_to_num(got).ravel()
        off = abs(a.astype(complex) - b) / np.maximum(np.maximum(abs(a), abs(b)), least)
        if off.any():
            at = int(off.argmax())
            place = f"{where}, element {at}" if want.shape else where
            yield Difference(FILE, place, repr(a[at]), repr(b[at]), float(off[at]))
