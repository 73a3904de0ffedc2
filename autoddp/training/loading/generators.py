"""The states of the global random generators of `random`, numpy and torch."""

from __future__ import annotations

import pickle
import random
import sys
from typing import Any

import torch

from autoddp.comm import accelerator


class Generators:
    """A snapshot of the generators of `random`, numpy, torch and all devices in use."""

    def __init__(self) -> None:
        numpy = sys.modules.get("numpy")
        self.python = random.getstate()
        self.numpy: Any = numpy.random.get_state(legacy=False) if numpy is not None else None
        self.torch = [torch.get_rng_state(), *accelerator.states()]

    def put_back(self) -> None:
        """Restore the states of all generators."""
        random.setstate(self.python)
        if self.numpy is not None:
            sys.modules["numpy"].random.set_state(self.numpy)
        torch.set_rng_state(self.torch[0])
        accelerator.set_states(self.torch[1:])

    def same(self, other: Generators) -> bool:
        """Return whether nothing was drawn between two snapshots."""
        mine, theirs = self.torch, other.torch
        if len(mine) != len(theirs) or not all(map(torch.equal, mine, theirs)):
            return False
        # numpy may have been imported in between
        same = self.numpy is None or other.numpy is None or equal_states(self.numpy, other.numpy)
        return same and self.python == other.python


def equal_states(one: Any, other: Any) -> bool:
    """Return whether two states are equal; `==` fails for dicts that hold arrays."""
    if isinstance(one, dict):
        return pickle.dumps(one) == pickle.dumps(other)
    return bool(one == other)
