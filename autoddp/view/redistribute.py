"""Differentiable functions from this rank's rows to the whole batch, and back.

Outside, every rank holds the true gradient. Inside, on rows, gradients are N times the true ones,
so that the *mean* over ranks of a parameter's gradient is exact for split work and for replicated
work alike, and taking it twice changes nothing.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function

from autoddp.view.shard_sizes import ShardSizes


def order_of(x: Tensor) -> list[int]:
    """Return the dimensions of `x` as they lie in memory, the outermost first."""
    strides, sizes = x.stride(), x.shape
    return sorted(range(x.dim()), key=lambda k: (-strides[k], sizes[k] < 2, k))


def empty_in_order(shape: tuple[int, ...], order: list[int], like: Tensor) -> Tensor:
    """Return an uninitialised tensor like `like` whose dimensions lie in memory in `order`.

    `view` works on it, and generators fill it, as on the tensor of one process.
    """
    return torch.empty_permuted(shape, order, dtype=like.dtype, device=like.device)


def agreed_order(local: Tensor, sizes: ShardSizes) -> list[int]:
    """Return the order in memory that the whole has, the same on all ranks.

    A dimension of size 1 hides the order: then rank 0, which has most rows, tells it.
    """
    order = order_of(local)
    if sizes.smallest > 1 or local.dim() < 2:
        return order
    found = sizes.view.group.confer("order of dimensions", json.dumps(order).encode())
    return list(json.loads(found)[0])


def all_gather_rows(local: Tensor, sizes: ShardSizes, dim: int) -> Tensor:
    """Gather every rank's rows along `dim` into the whole batch, laid out as in one process."""
    if sizes.blocks > 1:
        apart = local.unflatten(dim, (sizes.blocks, sizes.local // sizes.blocks))
        return all_gather_rows(apart, sizes.of_one_block(), dim + 1).flatten(dim, dim + 1).data
    order = agreed_order(local, sizes)
    x = local.movedim(dim, 0)
    if not sizes.even:
        padded = x.new_zeros((sizes.largest, *x.shape[1:]))
        padded[: sizes.local] = x
        x = padded
    got = sizes.view.group.all_gather(x)
    parts = [g[:c] for g, c in zip(got, sizes.per_rank, strict=True)]
    whole = (got.flatten(0, 1) if sizes.even else torch.cat(parts)).movedim(0, dim)
    if order == [dim, *(k for k in range(local.dim()) if k != dim)]:
        return whole.data  # no view: a view that is made here refuses to be written into
    return empty_in_order(tuple(whole.shape), order, local).copy_(whole)


class Boundary(Function):
    """The base of all boundaries between rows and wholes."""


class Gather(Boundary):
    """The boundary from this rank's rows to the whole."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sizes: ShardSizes, dim: int) -> Tensor:
        ctx.sizes, ctx.dim = sizes, dim
        return all_gather_rows(rows.detach(), sizes, dim)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (g,) = grads
        size = ctx.sizes.view.group.size
        if torch.is_grad_enabled() and g.requires_grad:  # a second derivative will follow
            return Scatter.apply(g, ctx.sizes, ctx.dim) * size, None, None
        return ctx.sizes.shard(g, ctx.dim) * size, None, None


class Scatter(Boundary):
    """The boundary from a whole tensor that needs a gradient to this rank's rows."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor, sizes: ShardSizes, dim: int) -> Tensor:
        ctx.sizes, ctx.dim = sizes, dim
        return sizes.shard(whole, dim).clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        g = grads[0] / ctx.sizes.view.group.size
        return Gather.apply(g, ctx.sizes, ctx.dim), None, None


class MeanGradient(Boundary):
    """A whole tensor, used by rows: back comes the mean over ranks, which is the true gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return SumWithin.apply(grads[0], ctx.group) / ctx.group.size, None


class SumOverRanks(Boundary):
    """The boundary from this rank's part of a sum, inside, to the sum, outside."""

    @staticmethod
    def forward(ctx: Any, term: Tensor, group: Any, total: Tensor | None = None) -> Tensor:
        ctx.group = group
        return group.all_reduce(term.detach().clone()) if total is None else total.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] * ctx.group.size, None, None


class SumWithin(Boundary):
    """A sum over ranks that each rank goes on to use for its rows, as BatchNorm's statistics."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return group.all_reduce(x.detach().clone(memory_format=torch.contiguous_format))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return SumWithin.apply(grads[0], ctx.group), None


class Mean(Boundary):
    """The mean over ranks of gradients at a leaf; a gradient that passes on is the true one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        return group.all_reduce(x.detach().clone(memory_format=torch.contiguous_format)).div_(
            group.size
        )

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0], None


NEARBY = 24  # nodes of a graph that are searched for boundaries; a larger one may have some


def node_name(x: Tensor) -> str:
    """Return the name that the script reads for the kind of `x.grad_fn`, empty without a graph."""
    node = x.grad_fn
    if node is None:
        return ""
    name = type(node).__name__
    return str(node.name()).rpartition("::")[2] if name == "CppFunction" else name


@cache
def with_node_name(kind: Any, node: str) -> Any:
    """Return `kind` with its graph node named `node`, as one process has it: `NllLossBackward0`."""
    if not node:
        return kind
    made: Any = type(kind.__name__, (kind,), {})
    made._backward_cls.__name__ = node
    return made


class Renamed(Function):
    """The identity, behind a graph node of another name."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0]


def with_mean_gradient(x: Any, group: Any) -> Any:
    """Return `x`, if it is a whole tensor, ready to meet rows.

    A leaf needs nothing: its gradient is averaged anyway. Neither does what is computed from leaves
    alone: gradients travel linearly. Only where rows were summed or gathered on the way to `x` must
    the true gradient come back.
    """
    if not isinstance(x, Tensor) or not x.requires_grad or x.is_leaf or not torch.is_grad_enabled():
        return x
    return x if _from_leaves_alone(x.grad_fn) else MeanGradient.apply(x, group)


def _from_leaves_alone(node: Any) -> bool:
    seen: set[Any] = set()
    todo = [node]
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        if issubclass(getattr(node, "_forward_cls", Tensor), Boundary) or len(seen) == NEARBY:
            return False
        seen.add(node)
        todo += [following for following, _ in node.next_functions]
    return True


def shard(x: Tensor, sizes: ShardSizes, dim: int) -> Tensor:
    """LocalRows this rank's rows along `dim` out of a whole tensor."""
    if x.requires_grad and torch.is_grad_enabled():
        return Scatter.apply(x, sizes, dim)
    return sizes.shard(x, dim)
