"""Backward passes that start from sharded or partial tensors."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from autoddp.view.rules.operands import MISALIGNED, local_operand
from autoddp.view.rules.partial import unread
from autoddp.view.sharded_tensor import full, is_sharded
from autoddp.view.table import uncached_rule

COMPARES = "torch.fx.experimental.symbolic_shapes"


def listed(x: Any) -> list[Any]:
    """Return one tensor or edge of a graph, several, those of a dict, or None as a list."""
    if isinstance(x, (Tensor, GradientEdge)):
        return [x]
    return [] if x is None else list(x.values() if type(x) is dict else x)


def roots(tensors: Any, grads: Any) -> tuple[list[Tensor], list[Tensor | None]]:
    """Return the roots and gradients from which this rank starts a backward pass.

    For a sharded or partial root these are its local tensor and the gradient times N, on N ranks.
    """
    outs, seeds = listed(tensors), listed(grads)
    seeds += [None] * (len(outs) - len(seeds))
    local = [_root(out, seed) for out, seed in zip(outs, seeds, strict=True)]
    return [root for root, _ in local], [seed for _, seed in local]


def _root(out: Any, seed: Any) -> tuple[Tensor, Tensor | None]:
    if unread(out):
        times = out.owner.group.size
        if seed is None:
            return _scaled(out.local, times)
        return out.local, full(seed).to(out.local.dtype) * times
    if is_sharded(out):
        times = out.sizes.view.group.size
        if seed is None:
            return out.local, None  # torch raises its error: not a scalar
        local = local_operand(seed, out.sizes, out.shard_dim, out.dim())
        if local is MISALIGNED:
            raise RuntimeError(
                f"a gradient of shape {tuple(seed.shape)} for a batch of {tuple(out.shape)}"
            )
        return out.local, local * times
    return full(out), full(seed)


def _scaled(loss: Tensor, times: int) -> tuple[Tensor, Tensor | None]:
    """Return a root and its gradient, which give this multiple of a loss's gradients.

    Torch compares the shape of a gradient by sympy, whose import takes half a second; no gradient
    is slower by a function.
    """
    if COMPARES in sys.modules:
        return loss, loss.new_full((), times)
    with torch.enable_grad():
        return loss * times, None


@uncached_rule("backward")
def backward(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute `loss.backward()` without reducing the loss."""
    names = ("gradient", "retain_graph", "create_graph", "inputs")
    options = dict(zip(names, args[1:], strict=False)) | kwargs
    args[0].owner.pull()
    torch.autograd.backward(args[0], options.pop("gradient", None), **options)
