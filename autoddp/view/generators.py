"""The states of all generators that user code may draw from."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch

from autoddp.comm import accelerator
from autoddp.view.mersenne import numpy_state, same_numpy


class Generators:
    """The states of `random`, numpy, torch and every device in use, at one moment."""

    def __init__(self) -> None:
        numpy = sys.modules.get("numpy")
        self.python = random.getstate()
        self.numpy: Any = numpy_state(numpy) if numpy is not None else None
        self.torch = [torch.get_rng_state(), *accelerator.states()]

    def put_back(self) -> None:
        """Set every generator back to its state at that moment."""
        random.setstate(self.python)
        if self.numpy is not None:
            sys.modules["numpy"].random.set_state(self.numpy)
        torch.set_rng_state(self.torch[0])
        accelerator.set_states(self.torch[1:])

    def same_python(self, other: Generators) -> bool:
        """Return whether neither `random` nor numpy was drawn from between the two moments."""
        if self.python != other.python:
            return False
        return self.numpy is None or other.numpy is None or same_numpy(self.numpy, other.numpy)

    def same_torch(self, other: Generators) -> bool:
        """Return whether torch was not drawn from between the two moments."""
        same = len(self.torch) == len(other.torch)
        return same and all(map(torch.equal, self.torch, other.torch))

    def same(self, other: Generators) -> bool:
        """Return whether nothing was drawn at all between the two moments."""
        return self.same_python(other) and self.same_torch(other)
