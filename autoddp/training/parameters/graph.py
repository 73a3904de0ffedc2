"""Gathered parameters in the graph: gradients are reduced, and what is saved is gathered again."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from autoddp.torch_internals import SavedTensors, plain_tensors, swap_implementation
from autoddp.training.parameters.aliases import REGION, Alias, Region
from autoddp.training.parameters.attributes import hook_whole
from autoddp.training.parameters.layout import Geometry, Layout, reduce_scatter
from autoddp.training.parameters.shard import CLASS, HELD, Held, ShardedState, held
from autoddp.training.parameters.shard_group import ShardGroup
from autoddp.training.parameters.wholes import Gathered, Wholes, address, byte_offset
from autoddp.view.redistribute import Boundary, node_name, with_node_name


class GatherParameters(Boundary):
    """All-gather shards; backward averages the gradients over ranks, each of which keeps its shard.

    The mean over ranks of a gradient is exact, whether ranks have computed rows or the whole batch.
    Its inputs are leaves, so a gathered parameter needs no other average.
    """

    of_leaves = True

    @staticmethod
    def forward(ctx: Any, wholes: Wholes, layouts: list[Layout], make: Any, *locals_: Any) -> Any:
        ctx.wholes, ctx.layouts = wholes, layouts
        ctx.set_materialize_grads(False)
        return tuple(make())

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        there = [n for n, g in enumerate(grads) if g is not None]
        layouts = [ctx.layouts[n] for n in there]
        given = [_dense(grads[n]) for n in there]
        found: list[Any] = [None] * len(grads)
        if there:
            reduced = ReduceGradients.apply(ctx.wholes, layouts, *given)
            for n, g in zip(there, reduced, strict=True):
                found[n] = g
        return None, None, None, *found


class ReduceGradients(Boundary):
    """Average whole tensors over ranks, of which each keeps its shard; backward gathers."""

    @staticmethod
    def forward(ctx: Any, wholes: Wholes, layouts: list[Layout], *grads: Any) -> Any:
        ctx.wholes, ctx.layouts = wholes, layouts
        ctx.set_materialize_grads(False)
        with wholes.internal():
            return tuple(reduce_scatter([g.detach() for g in grads], layouts))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        wholes, found = ctx.wholes, []
        for layout, g in zip(ctx.layouts, grads, strict=True):
            found.append(None if g is None else whole_of(wholes, Held(g, layout, wholes)))
        return None, None, *found


class SumOfShards(Boundary):
    """All-reduce the sum of a shard to that of the whole tensor; backward: `MeanOfRanks`."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, wholes: Wholes, group: ShardGroup) -> Tensor:
        ctx.wholes, ctx.group = wholes, group
        with wholes.internal():
            return group.all_reduce(part.detach().clone())

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return MeanOfRanks.apply(grads[0], ctx.wholes, ctx.group), None, None


class MeanOfRanks(Boundary):
    """Average a gradient over all ranks, which is the true one, as a shard's is.

    Backward sums what the shards of one whole have made of it.
    """

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, wholes: Wholes, group: ShardGroup) -> Tensor:
        ctx.wholes, ctx.group = wholes, group
        with wholes.internal():
            return wholes.group.all_reduce(gradient.detach().clone()).div_(wholes.group.size)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return SumOfShards.apply(grads[0], ctx.wholes, ctx.group), None, None


def _dense(gradient: Tensor) -> Tensor:
    """Return a gradient that every rank has in one layout: an embedding's may be sparse."""
    return gradient if gradient.layout is torch.strided else gradient.to_dense()


def whole_of(wholes: Wholes, mine: Held) -> Tensor:
    """Return the whole of a tensor, with a graph if it has one and gradients are on."""
    if not torch.is_grad_enabled():
        return wholes.plain(mine)
    if not mine.local.requires_grad:
        return wholes.plain(mine).detach()  # a write may give this one a graph
    gathered = wholes.of(mine)
    if gathered is None or gathered.members[mine.index].local is not mine.local:
        plain = wholes.plain(mine).detach()
        out: Tensor = _apply(wholes, [mine.layout], lambda: [plain], mine.local)[0]
        return out
    if mine.index not in gathered.graph:
        _add_node(wholes, gathered)
    return gathered.graph[mine.index]


def _add_node(wholes: Wholes, gathered: Gathered) -> None:
    """Add all parameters of a unit to the graph that need a gradient and are not in it yet."""
    new = [
        n
        for n, x in enumerate(gathered.members)
        if x.local.requires_grad and n not in gathered.graph
    ]
    layouts = [gathered.unit.layouts[n] for n in new]
    locals_ = [gathered.members[n].local for n in new]
    made = _apply(wholes, layouts, lambda: map(gathered.fresh, new), *locals_)
    gathered.graph.update(zip(new, made, strict=True))


def _apply(wholes: Wholes, layouts: list[Layout], make: Any, *locals_: Tensor) -> Any:
    # what was computed of parameters keeps the name of its node
    node = "" if len(locals_) > 1 or locals_[0].is_leaf else node_name(locals_[0])
    with wholes.internal():
        return with_node_name(GatherParameters, node).apply(wholes, layouts, make, *locals_)


def compute_wholes(leaves: Iterable[Any]) -> None:
    """Let what was computed from parameters, with a graph, be whole from now on.

    A write into it, or into a view of it, is then a part of the graph.
    """
    for x in leaves:
        if type(x) is not ShardedState or held(x).local.is_leaf or not torch.is_grad_enabled():
            continue
        mine = held(x)
        plain = mine.wholes.plain(mine).detach()
        (whole,) = _apply(mine.wholes, [mine.layout], lambda p=plain: [p], mine.local)
        shared = any(user is not x for user in mine.memory.users())
        memory = whole.detach()
        with plain_tensors():
            swap_implementation(x, whole)
            CLASS.__set__(x, Alias if shared else Tensor)
            hook_whole(x, mine)
            if mine.local.retains_grad:
                x.retain_grad()
        del x.__dict__[HELD]
        if shared:  # as `p.data` that was written into
            x.__dict__[REGION] = Region(mine.alias(mine.local.detach()), memory)


class Saved:
    """What autograd saves of a gathered unit: which part of its memory, not the memory.

    Attributes:
        members: What this rank holds of the unit's parameters.
        number: Which of them it is a part of.
        version: The version of its shard then.
    """

    __slots__ = ("geometry", "members", "number", "offset", "unit", "version")

    def __init__(self, gathered: Gathered, part: Tensor) -> None:
        self.unit, self.members = gathered.unit, gathered.members
        self.geometry, self.offset = Geometry(part), int(part.storage_offset())
        place = byte_offset(part) // gathered.flat.element_size()
        # one without elements begins where the next one does
        self.number = bisect_right(self.unit.offsets, place) - 1
        self.version = self.members[self.number].local._version

    def again(self, wholes: Wholes) -> Tensor:
        """Gather the unit again, and return the part.

        Raises:
            RuntimeError: The parameter was written into in place, as torch raises it.
        """
        mine = self.members[self.number]
        changed(mine.local, self.version, mine.layout.shape)
        gathered = wholes.kept.get(self.unit)
        if gathered is None or not gathered.valid(mine):
            if gathered is not None:
                wholes.drop(self.unit)
            gathered = wholes.gathered(self.unit, self.members)
        return self.geometry.at(gathered.flat, self.offset)


def changed(x: Tensor, before: int, shape: torch.Size) -> None:
    """Raise torch's error if a saved tensor was written into in place."""
    if x._version != before:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace "
            f"operation: [{x.type()} {[*shape]}] is at version {x._version}; expected version "
            f"{before} instead. Hint: enable anomaly detection to find the operation that failed "
            "to compute its gradient, with torch.autograd.set_detect_anomaly(True)."
        )


class SavedParameters:
    """Hooks of saved tensors around a function of gathered parameters.

    Tensors of other memory go to the hooks around these, as those of a checkpoint, or are kept with
    their versions, which torch compares without hooks only.
    """

    def __init__(self, wholes: Wholes) -> None:
        self._hooks = SavedTensors(self._pack, self._unpack)
        self._wholes = wholes
        self._outer: list[Any] = []

    def __enter__(self) -> None:
        self._outer.append(self._hooks.outer())
        self._hooks.push()

    def __exit__(self, *_: object) -> None:
        self._hooks.pop()
        self._outer.pop()

    def _pack(self, x: Tensor) -> Any:
        gathered = self._wholes.by_address.get(address(x)) if x.numel() else None
        if gathered is not None:
            return Saved(gathered, x)
        outer = self._outer[-1]
        if outer is not None:
            return outer[1], outer[0](x)
        return x, x._version

    def _unpack(self, packed: Any) -> Tensor:
        if type(packed) is Saved:
            return packed.again(self._wholes)
        first, second = packed
        if not isinstance(first, Tensor):
            unpacked: Tensor = first(second)
            return unpacked
        changed(first, second, first.shape)
        return first
