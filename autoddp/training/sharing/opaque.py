"""State that is in no attribute: of arrays, of generators that are objects, of iterators."""

from __future__ import annotations

import array
import functools
import io
import random
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

MOST = 2**24  # elements of an array; a larger one is data, not state

IN_LIBRARY = (
    "dropout between layers of an RNN draws from a state of the device's library, never put back"
)

IN_MEMORY: Any = (io.StringIO, io.BytesIO)  # files

Check = Callable[[], bool]  # puts the state back; returns whether it had changed


def kept(value: Any) -> Check | None:
    """Return how to put `value` back as it is now; None for what has no such state."""
    if isinstance(value, (bytearray, array.array)):
        return _elements(value)
    if isinstance(value, random.SystemRandom):
        return None  # it has no state, and raises where that is asked for
    if isinstance(value, random.Random):
        return _state(value.getstate, value.setstate)
    if isinstance(value, torch.Generator):
        return _state(value.get_state, value.set_state)
    if isinstance(value, IN_MEMORY):
        return None if value.closed else _state(value.__getstate__, value.__setstate__)
    if isinstance(value, functools._lru_cache_wrapper):
        return None if value.cache_info().currsize else _cache(value)
    numpy = sys.modules.get("numpy")
    return _of_numpy(numpy, value) if numpy is not None else None


def is_large(value: Any) -> bool:
    """Return whether `value` is an array that can be written into, too large to be kept."""
    numpy = sys.modules.get("numpy")
    is_array = numpy is not None and isinstance(value, numpy.ndarray)
    return bool(is_array and value.size > MOST and value.flags.writeable)


def tensor(value: Tensor) -> Check:
    """Return a check of a tensor's elements: `x.data` and numpy write past its count of writes."""
    before, copy = value.data, value.detach().clone()

    def check() -> bool:
        now = value.data
        if not now.is_set_to(before):
            value.data = before
        same = now.shape == copy.shape and now.dtype == copy.dtype and _alike(now, copy)
        if not same or not _alike(before, copy):
            before.copy_(copy)
        return not same

    return check


def _alike(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a, b) or torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)


def advances(value: Any) -> bool:
    """Return whether `value` is an iterator of Python's own.

    Whoever asks it for more changes it, for ever.
    """
    kind = type(value)
    return kind.__module__ in ("builtins", "itertools") and hasattr(kind, "__next__")


def _elements(value: Any) -> Check:
    before = value[:]

    def check() -> bool:
        changed = bool(value != before)
        if changed:
            value[:] = before
        return changed

    return check


def _cache(value: Any) -> Check:
    """Return a check that empties a cache again, so that the next call has all its effects, too."""

    def check() -> bool:
        value.cache_clear()
        return False  # a value that depends on the arguments alone is no state

    return check


def _state(get: Callable[[], Any], put: Callable[[Any], Any]) -> Check:
    before = get()
    words = _words(before)

    def check() -> bool:
        changed = _words(get()) != words
        if changed:
            put(before)
        return changed

    return check


def _words(state: Any) -> Any:
    """Return what `==` compares as one; it does not so with arrays."""
    if isinstance(state, dict):
        return {key: _words(part) for key, part in state.items()}
    if isinstance(state, (tuple, list)):
        return [_words(part) for part in state]
    return state.tolist() if hasattr(state, "tolist") else state


def _of_numpy(numpy: Any, value: Any) -> Check | None:
    if isinstance(value, numpy.ndarray):
        return _array(value) if value.size <= MOST and value.flags.writeable else None
    if isinstance(value, numpy.random.RandomState):
        return _state(value.get_state, value.set_state)
    if isinstance(value, numpy.random.Generator):
        value = value.bit_generator
    if isinstance(value, numpy.random.BitGenerator):
        return _state(lambda: value.state, lambda state: setattr(value, "state", state))
    return None


def _array(value: Any) -> Check:
    before = value.copy()

    def check() -> bool:
        changed = value.shape != before.shape or value.tobytes() != before.tobytes()
        if changed:
            if value.shape != before.shape:  # never so for a view, which `resize` refuses
                value.resize(before.shape, refcheck=False)
            value[...] = before
        return changed

    return check


def draws_in_library(module: nn.Module) -> bool:
    """Return whether a part of the module drops values inside cuDNN, or the like of it."""
    return any(
        isinstance(m, nn.RNNBase)
        and m.training
        and m.dropout > 0
        and m.num_layers > 1
        and any(p.device.type != "cpu" for p in m.parameters())
        for m in module.modules()
    )
