"""Torch's own access to the gradient of a tensor, also while ours stands in its place."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from autoddp.torch_internals import no_torch_function

GRAD: Any = torch.Tensor.grad  # getter, setter and deleter


def as_torch(access: Any, tensor: Tensor, *value: Any) -> Any:
    """Read, set or delete a gradient; a tensor's class, or a mode, is told of torch's own access.

    Torch itself would tell them of whatever stands at `Tensor.grad`, which nobody knows.
    """
    if has_torch_function((tensor,)):
        return handle_torch_function(access, (tensor,), tensor, *value)
    return access(tensor, *value)


def gradient_of(leaf: Tensor) -> Tensor | None:
    """Return the gradient as this rank has it, whether averaged or not."""
    found: Tensor | None = as_torch(GRAD.__get__, leaf)
    return found


def without_gradient(leaves: Iterable[Tensor]) -> list[Tensor]:
    """Return those leaves that have no gradient; nobody is told of this look at all of them."""
    read = GRAD.__get__
    with no_torch_function():
        return [leaf for leaf in leaves if read(leaf) is None]
