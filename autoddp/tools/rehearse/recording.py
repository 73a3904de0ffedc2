"""What recorders share: how a run ends early, and the number that a loss is."""

from __future__ import annotations

import torch
from torch import Tensor


class Enough(SystemExit):
    """As many steps as were asked for: the script ends here, and well."""

    def __init__(self) -> None:
        super().__init__(0)


def value(root: Tensor) -> float:
    """A loss; of something larger a number that any change of it changes."""
    if root.is_complex():
        root = torch.view_as_real(root)
    return float(root if root.dim() == 0 else root.double().norm())
