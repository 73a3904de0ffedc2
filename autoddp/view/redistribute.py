"""Differentiable redistribution between shards, replicated tensors and partial sums.

On a replicated tensor every rank holds the true gradient. On a shard, gradients are N times the
true ones for N ranks, so that the *mean* over ranks of a parameter's gradient is exact for sharded
and for replicated work alike, and averaging it twice changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd.function import Function

from autoddp.own_operations import unseen
from autoddp.torch_internals import outside_transforms, transform
from autoddp.view.shard_sizes import ShardSizes, Spec, whole_strides

NODES: set[int] = set()


def agreed_strides(local: Tensor, sizes: ShardSizes, dim: int) -> tuple[int, ...]:
    """Return the strides of the whole tensor, of which `local` is this rank's shard along `dim`.

    In their order generators fill it, and by them `reshape` views or copies it, as in one process.
    The stride of a single row is ambiguous: where only some ranks have one row, rank 0 decides,
    which has the most.
    """
    strides = whole_strides(local.shape, local.stride(), dim, sizes)
    if sizes.smallest > 1 or sizes.even or local.dim() < 2:
        return strides
    agreed = sizes.view.group.confer("strides", json.dumps(strides).encode())
    return tuple(json.loads(agreed)[0])


@unseen
def all_gather_rows(local: Tensor, sizes: ShardSizes, dim: int) -> Tensor:
    """All-gather the shards along `dim` into the whole batch, with the strides of one process."""
    if sizes.blocks > 1:
        split = local.unflatten(dim, (sizes.blocks, sizes.local // sizes.blocks))
        return all_gather_rows(split, sizes.of_one_block(), dim + 1).flatten(dim, dim + 1).data
    strides = agreed_strides(local, sizes, dim)
    order = sorted(range(len(strides)), key=lambda k: (-strides[k], local.shape[k] < 2, k))
    x = local.movedim(dim, 0)
    if not sizes.even:
        padded = x.new_zeros((sizes.largest, *x.shape[1:]))
        padded[: sizes.local] = x
        x = padded
    gathered = sizes.view.group.all_gather(x)
    parts = [g[:c] for g, c in zip(gathered, sizes.per_rank, strict=True)]
    whole = (gathered.flatten(0, 1) if sizes.even else torch.cat(parts)).movedim(0, dim)
    if order == [dim, *(k for k in range(local.dim()) if k != dim)]:
        return whole.data  # a view created here would not allow in-place writes
    out = torch.empty_permuted(whole.shape, order, dtype=local.dtype, device=local.device)
    return out.copy_(whole)


class Counted:
    """Counts a node of the graph for as long as it is there."""

    def __init__(self) -> None:
        Boundary.nodes.add(id(self))

    def __del__(self, forget: Callable[[int], None] = NODES.discard) -> None:
        forget(id(self))


class Boundary(Function):
    """Base class of the autograd functions between shards and whole tensors.

    Attributes:
        of_leaves: Whether the gradient of its result is averaged in its backward.
        nodes: The nodes of all graphs that are there; without any, no graph leads from rows to
            whole tensors.
    """

    of_leaves = False
    nodes: ClassVar[set[int]] = NODES

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        plain = vars(cls).get("forward")
        if plain is not None:

            def forward(ctx: Any, *args: Any) -> Any:
                ctx.counted = Counted()
                return plain(ctx, *args)

            cls.forward = staticmethod(forward)  # type: ignore[method-assign]


class Gather(Boundary):
    """All-gather a shard to the whole batch; backward returns this rank's rows, times N.

    If the whole is `known` already, the result shares its memory.
    """

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, sizes: ShardSizes, dim: int, known: Tensor | None = None
    ) -> Tensor:
        ctx.sizes, ctx.dim = sizes, dim
        return all_gather_rows(rows.detach(), sizes, dim) if known is None else known.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (g,) = grads
        size = ctx.sizes.view.group.size
        if torch.is_grad_enabled() and g.requires_grad:  # for a second derivative
            return Scatter.apply(g, ctx.sizes, ctx.dim) * size, None, None, None
        return ctx.sizes.shard(g, ctx.dim) * size, None, None, None


@unseen
def gather(rows: Tensor, spec: Spec, graph: bool, known: Tensor | None = None) -> Tensor:
    """All-gather rows, with a graph or without; `known` is the whole if only that is missing."""
    with (
        outside_transforms() if transform() else nullcontext(),
        same_mode(rows),
        torch.set_grad_enabled(graph),
    ):
        function = with_node_name(Gather, node_name(rows)) if graph else Gather
        whole: Tensor = function.apply(rows, spec.sizes, spec.dim, known)
        return whole


@contextmanager
def same_mode(x: Tensor) -> Iterator[None]:
    """Enable inference mode if `x` was created in it, else disable it."""
    if x.is_inference() == torch.is_inference_mode_enabled():
        yield
    else:
        with (
            torch.inference_mode(x.is_inference()),
            torch.set_grad_enabled(torch.is_grad_enabled()),
        ):
            yield


class Scatter(Boundary):
    """Return this rank's rows of a replicated tensor; backward gathers and divides by N."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor, sizes: ShardSizes, dim: int) -> Tensor:
        ctx.sizes, ctx.dim = sizes, dim
        return sizes.copy(whole, dim)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        g = grads[0] / ctx.sizes.view.group.size
        return Gather.apply(g, ctx.sizes, ctx.dim), None, None


class MeanGradient(Boundary):
    """The identity on a replicated tensor; backward averages over ranks, to the true gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return SumWithin.apply(grads[0], ctx.group) / ctx.group.size, None


class SumOverRanks(Boundary):
    """All-reduce a term of a sum to the sum; backward multiplies by N."""

    @staticmethod
    def forward(ctx: Any, term: Tensor, group: Any, total: Tensor | None = None) -> Tensor:
        ctx.group = group
        if total is not None:
            return total.clone()
        return group.all_reduce(term.detach().clone(memory_format=torch.contiguous_format))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (g,) = grads
        if torch.is_grad_enabled() and g.requires_grad:  # for a second derivative: it meets rows
            g = MeanGradient.apply(g, ctx.group)
        return g * ctx.group.size, None, None


class SumWithin(SumOverRanks):
    """All-reduce a tensor that is then used for local rows; backward is an all-reduce, too."""

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return SumWithin.apply(grads[0], ctx.group), None


def mean_over_ranks(x: Tensor, group: Any) -> Tensor:
    """Average the gradient of a leaf over ranks; the gradient of the mean is that of `x`."""
    total: Tensor = SumOverRanks.apply(x, group)
    return total / group.size


NEARBY = 24  # nodes to search for a `Boundary`; a larger graph counts as having one


def node_name(x: Tensor) -> str:
    """Return the name of the type of `x.grad_fn`, empty if there is none."""
    node = x.grad_fn
    if node is None:
        return ""
    name = type(node).__name__
    return str(node.name()).rpartition("::")[2] if name == "CppFunction" else name


@cache
def with_node_name(kind: Any, node: str) -> Any:
    """Return `kind` with its graph node called `node`: `NllLossBackward0`, as in one process."""
    if not node:
        return kind
    subclass: Any = type(kind.__name__, (kind,), {})
    subclass._backward_cls.__name__ = node
    return subclass


class Renamed(Function):
    """The identity, for a graph node of another name."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0]


def with_mean_gradient(x: Any, group: Any) -> Any:
    """Return `x`; if it is replicated, its gradient from local rows is averaged over ranks.

    The gradient of a leaf is averaged anyway, and so is that of a tensor computed from leaves only,
    as torch's own gradients are linear. `MeanGradient` is needed after a sum or a gather of rows,
    and after a function with a backward that the script has written, or an extension.
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
        kind: Any = getattr(node, "_forward_cls", Tensor)
        if issubclass(kind, Boundary) and kind.of_leaves:
            seen.add(node)
            continue
        written = type(node).__name__ == "CppFunction" or issubclass(kind, Function)
        if (written and not issubclass(kind, Renamed)) or len(seen) == NEARBY:
            return False
        seen.add(node)
        todo += [next_node for next_node, _ in node.next_functions]
    return True


def shard(x: Tensor, sizes: ShardSizes, dim: int) -> Tensor:
    """Return this rank's rows along `dim` of a replicated tensor."""
    if x.requires_grad and torch.is_grad_enabled():
        return Scatter.apply(x, sizes, dim)
    return sizes.shard(x, dim)


def rows_of(x: Tensor, sizes: ShardSizes, dim: int) -> Tensor:
    """Return this rank's rows along `dim` of a replicated tensor, in memory of their own."""
    if x.requires_grad and torch.is_grad_enabled():
        return Scatter.apply(x, sizes, dim)
    return sizes.copy(x, dim)
