"""The parts that recorders share: how a run ends early, and the number that a loss is."""

from __future__ import annotations

import torch
from torch import Tensor


class Enough(SystemExit):
    """The end of a script, with exit code 0, after as many steps as were asked for."""

    def __init__(self) -> None:
        super().__init__(0)


def value(root: Tensor) -> float:
    """Read a loss as a number; a tensor of several numbers by its norm."""
    if root.is_complex():
        root = torch.view_as_real(root)
    return float(root if root.dim() == 0 else root.double().norm())
