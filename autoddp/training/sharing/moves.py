"""Moves of generators in a fetch, and exceptions: told by one rank, repeated by the others."""

from __future__ import annotations

import importlib
import pickle
import random
from typing import Any

import torch

from autoddp.comm import accelerator
from autoddp.errors import RemoteError
from autoddp.view.generators import Generators
from autoddp.view.mersenne import same_numpy

Moves = dict[str, Any]


def moves(before: Generators | None) -> Moves:
    """Return the states of generators that have moved since; none where that is not known."""
    found: Moves = {}
    if before is None:
        return found
    after = Generators()
    if after.python != before.python:
        found["python"] = after.python
    if after.numpy is not None and not same_numpy(before.numpy, after.numpy):
        found["numpy"] = after.numpy
    states = [*before.torch, *[None] * (len(after.torch) - len(before.torch))]
    for number, (old, new) in enumerate(zip(states, after.torch, strict=False)):
        if old is None or not torch.equal(old, new):
            found.setdefault("torch", {})[number] = new
    return found


def follow(taken_apart: Moves) -> None:
    """Set this rank's generators to the states that the other rank told."""
    if "python" in taken_apart:
        random.setstate(taken_apart["python"])
    if "numpy" in taken_apart:
        importlib.import_module("numpy").random.set_state(taken_apart["numpy"])
    places = [accelerator.CPU, *accelerator.devices()]
    for number, state in taken_apart.get("torch", {}).items():
        if number < len(places):
            accelerator.set_state(places[number], state)


def taken_apart(error: BaseException) -> tuple[Any, ...]:
    """Take an exception apart, into its class and content; tell in words what cannot travel."""
    kind = type(error)
    for holds in (vars(error), {}):
        for args in (error.args, tuple(map(str, error.args))):
            parts = kind, args, holds, _os(error)
            try:
                again = raised(pickle.loads(pickle.dumps(parts)))
                if type(again) is kind and str(again) == str(error):
                    return parts
            except Exception:  # what a class's own way to be made raises
                continue
    return None, (f"the rank that loads for this node raised {kind.__name__}: {error}",), {}, ()


def raised(parts: tuple[Any, ...]) -> BaseException:
    """Make the exception that `told` took apart."""
    kind, args, holds, os_parts = parts
    if kind is None:
        return RemoteError(*args)
    if os_parts:
        return kind(*os_parts)
    if kind.__module__ == "builtins":
        return kind(*args)
    error: BaseException = kind.__new__(kind, *args)
    error.args = args
    vars(error).update(holds)
    return error


def _os(error: BaseException) -> tuple[Any, ...]:
    if not isinstance(error, OSError) or error.errno is None:
        return ()
    return error.errno, error.strerror, error.filename, None, error.filename2
