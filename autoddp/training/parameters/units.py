"""Which parameters are gathered together, and their sharding."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable, Iterator
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from autoddp.allocator import give_back_memory
from autoddp.comm.context import Code
from autoddp.torch_internals import storage_uses, tensor_uses
from autoddp.training.fingerprint import Fingerprint
from autoddp.training.parameters.attributes import move_hooks
from autoddp.training.parameters.layout import cut_evenly, is_dense
from autoddp.training.parameters.replaced import become_plain
from autoddp.training.parameters.shard import (
    Held,
    become,
    held,
    is_shard,
    require,
)
from autoddp.training.parameters.shard_group import ShardGroup
from autoddp.training.parameters.wholes import Unit, Wholes
from autoddp.view.order import parameters_of

LISTS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)
SMALLEST = 4096  # elements of a block that is gathered by itself
MANY = 64  # blocks of a model are at least one part in so many of it
LARGE = 4  # and one that is more than a fourth is divided, if it has blocks itself


def size_of(module: nn.Module) -> int:
    """Return the number of elements of a module's parameters."""
    return sum(p.numel() for p in parameters_of(module))


def blocks_of(module: nn.Module, total: int) -> Iterator[nn.Module]:
    """Yield the repeated blocks of a model, none inside another: the children of its lists."""
    least = max(SMALLEST, total // MANY)
    for child in nn.Module.children(module):
        inside = [*blocks_of(child, total)]
        block = isinstance(module, LISTS) and not isinstance(child, LISTS)
        size = size_of(child)
        if block and size >= least and (not inside or size * LARGE <= total):
            yield child
        else:
            yield from inside


def grouped(module: nn.Module) -> list[list[nn.Parameter]]:
    """Return the parameters of each block of a model, and at the end those of its root.

    What several blocks share belongs to the root.
    """
    total = size_of(module)
    blocks = [[*parameters_of(block)] for block in blocks_of(module, total)]
    owners: dict[int, int] = {}
    inside: dict[int, int] = {}
    for block in blocks:
        for p in block:
            owners[id(p)] = owners.get(id(p), 0) + 1
    for name, owner in nn.Module.named_modules(module):
        del name
        for p in owner._parameters.values():
            inside[id(p)] = inside.get(id(p), 0) + 1
    own = [[p for p in block if owners[id(p)] == inside[id(p)] == 1] for block in blocks]
    taken = {id(p) for block in own for p in block}
    return [*own, [p for p in parameters_of(module) if id(p) not in taken]]


class Sharding:
    """The sharding of models on one rank."""

    def __init__(self, wholes: Wholes) -> None:
        self.wholes, self.group = wholes, wholes.group
        self.over = ShardGroup(wholes.group)  # the ranks of the next units
        self.elements = 0
        self.compiled: WeakSet[nn.Module] = WeakSet()

    def model(self, module: nn.Module) -> None:
        """Shard the parameters of a model, block by block."""
        whole = self.whole_in(module)
        *blocks, root = ([p for p in some if id(p) not in whole] for some in grouped(module))
        for block in blocks:
            self.unit(block, root=False)
        self.unit(root, root=True)

    def parameters(self, wanted: list[Tensor]) -> None:
        """Shard the parameters of an optimizer, those of a model block by block."""
        whole: set[int] = set()
        for module in _roots({id(p) for p in wanted}):
            self.model(module)
            whole |= self.whole_in(module)
        self.unit([p for p in wanted if id(p) not in whole], root=False)

    def whole_in(self, module: nn.Module) -> set[int]:
        """Return the ids of parameters of a module that stay whole.

        A shard's gradient is dense where that of a weight may be sparse, and compiled graphs read
        parameters past any function of torch.
        """
        modules = [*nn.Module.modules(module)]
        found = {id(m.weight) for m in modules if getattr(m, "sparse", False)}
        graphs = [m for m in modules if m in self.compiled]
        return found | {id(p) for m in graphs for p in parameters_of(m)}

    def undo(self, module: nn.Module, why: str) -> None:
        """Let the sharded parameters of a module be replicated from now on."""
        for p in parameters_of(module):
            if is_shard(p):
                self.wholes.replicated(p, why)
                become_plain(p, self.wholes.plain(held(p)).clone())

    def unit(self, parameters: Iterable[Any], root: bool) -> None:
        """Shard parameters, those of one dtype and device as a unit."""
        kinds: dict[Any, list[nn.Parameter]] = {}
        for p in parameters:
            if shardable(p):
                kinds.setdefault((p.dtype, p.device), []).append(p)
        for some in kinds.values():
            self._shard(some, root)

    @torch.no_grad()
    def _shard(self, parameters: list[nn.Parameter], root: bool) -> None:
        self._compare(parameters)
        layouts, offsets = cut_evenly(parameters, self.over)
        unit = Unit(layouts, offsets, root)
        members = []
        for n, (p, layout) in enumerate(zip(parameters, layouts, strict=True)):
            members.append(self._one(p, layout, unit, n))
        unit.fill(members)
        if not self.wholes.view.sharded_parameters:
            self.wholes.view.shard_parameters()
            give_back_memory(os.environ)
        self.elements += sum(offsets[-1:]) + parameters[-1].numel()

    def _one(self, p: nn.Parameter, layout: Any, unit: Unit, index: int) -> Held:
        """Replace a parameter's memory by its shard."""
        local = layout.shard(p.detach()).clone()
        require(local, p.requires_grad)
        mine = Held(local, layout, self.wholes, None, unit, index)
        if p.grad is not None:
            local.grad = layout.shard(p.grad).clone()
        move_hooks(p, local)
        become(p, mine)
        return mine

    def _compare(self, parameters: list[nn.Parameter]) -> None:
        """Compare parameters over ranks, of which each keeps a shard.

        Raises:
            Disagreement: They are not equal.
        """
        found = Fingerprint()
        found.add_each([*parameters])
        with self.wholes.view.context.within(Code.PLAIN):
            found.compare(self.group)


def shardable(p: Any) -> bool:
    """Return whether a parameter can be sharded: nothing else may be in its memory.

    A parameter without dimensions stays whole: its functions promote dtypes in another way.
    """
    return (
        type(p) is nn.Parameter
        and p.dim() > 0
        and p.numel() > 0
        and is_dense(p)
        and p.device.type != "meta"
        and tensor_uses(p) == 1
        and storage_uses(p) <= 1
        and p.untyped_storage().nbytes() == p.nbytes
    )


def _roots(ids: set[int]) -> list[nn.Module]:
    """Return the outermost modules that hold one of these parameters."""
    modules = [m for m in gc.get_objects() if isinstance(m, nn.Module)]
    owners = [m for m in modules if any(id(p) in ids for p in parameters_of(m))]
    inner = {id(child) for m in owners for child in nn.Module.modules(m) if child is not m}
    return [m for m in owners if id(m) not in inner]
