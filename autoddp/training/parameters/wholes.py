"""Gathered parameters: few at a time, each valid until somebody writes into a shard of it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import compress
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.utils._pytree import tree_leaves

from autoddp.comm.context import Code
from autoddp.report import users_line
from autoddp.torch_internals import outside_transforms, plain_tensors, transform
from autoddp.training.parameters.agreement import Agreement
from autoddp.training.parameters.layout import (
    Layout,
    all_gather,
    cut_evenly,
    whole_of_rows,
)
from autoddp.training.parameters.saving import Saving
from autoddp.training.parameters.shard import Held, refuse_threads
from autoddp.training.parameters.shard_group import ShardGroup
from autoddp.view.state import View

BLOCKS = 2  # units that are gathered at once, beside those of the model's root


class Unit:
    """Parameters that are gathered and reduced in one collective: those of one block.

    Their memory, one after the other, is cut into equal parts, so what is gathered is in order.

    Args:
        offsets: Where each parameter begins.
        root: Whether it stays gathered until the end of a step: it is used at both ends.
    """

    def __init__(self, layouts: list[Layout], offsets: list[int], root: bool) -> None:
        self.layouts, self.offsets, self.root = layouts, offsets, root
        self._members: list[Callable[[], Held | None]] = []

    def empty(self) -> Unit:
        """Return a unit for copies of these parameters."""
        made = Unit(self.layouts, self.offsets, self.root)
        made._members = [lambda: None] * len(self._members)
        return made

    def fill(self, members: list[Held]) -> None:
        """Set the parameters of this unit."""
        self._members = [*map(weakref.ref, members)]

    def replace(self, index: int, new: Held) -> None:
        """Set what this rank holds of one parameter from now on."""
        self._members[index] = weakref.ref(new)

    def members(self) -> list[Held] | None:
        """Return what this rank holds of all parameters; None if they can't be gathered at once."""
        found = [each() for each in self._members]
        known = [x for x in found if x is not None and x.unit is self]
        kinds = {(x.local.dtype, x.local.device) for x in known}
        return known if len(known) == len(self._members) and len(kinds) == 1 else None


class Gathered:
    """The whole parameters of a unit.

    Attributes:
        members: What this rank holds of each; whatever is saved of a whole keeps them alive.
        flat: The memory of all, one after the other.
    """

    def __init__(self, unit: Unit, members: list[Held], flat: Tensor) -> None:
        self.unit, self.members, self.flat = unit, members, flat
        self.seen = [(x.memory, x.memory.writes) for x in members]
        self._plain: dict[int, Tensor] = {}
        self.graph: dict[int, Tensor] = {}  # outputs of the graph's node that gathers

    def valid(self, mine: Held) -> bool:
        """Return whether nobody has written into the shard since it was gathered."""
        memory, writes = self.seen[mine.index]
        return memory is mine.memory and memory.writes == writes

    def fresh(self, index: int) -> Tensor:
        """Return a whole parameter as a new tensor with a version of its own."""
        return self.unit.layouts[index].whole(self.flat, self.unit.offsets[index])

    def plain(self, index: int) -> Tensor:
        """Return a whole parameter outside of any graph."""
        found = self._plain.get(index)
        if found is None:
            with torch.inference_mode(False):
                found = self._plain[index] = self.fresh(index)
        return found

    def wrote(self, mine: Held) -> None:
        """Note that a whole and its shard have been written into alike."""
        self.seen[mine.index] = mine.memory, mine.memory.writes


class Wholes:
    """The gathered parameters of one rank."""

    def __init__(self, view: View) -> None:
        self.view, self.group = view, view.group
        self.kept: dict[Unit, Gathered] = {}  # the one used last comes last
        self.by_address: dict[int, Gathered] = {}
        self._held: list[torch.UntypedStorage] = []
        self.saving: Saving | None = None
        self.agreement = Agreement(self)

    def gathered(self, unit: Unit, members: list[Held]) -> Gathered:
        """Return the whole parameters of a unit."""
        found = self.kept.pop(unit, None)
        if found is None:
            with self._gathering():
                flat = all_gather(members, unit.offsets).view(-1)
            found = Gathered(unit, members, flat)
            self.by_address[address(found.flat)] = found
        self.kept[unit] = found
        blocks = [x for x in self.kept if not x.root]
        for old in blocks[:-BLOCKS]:
            self.drop(old)
        return found

    def of(self, mine: Held) -> Gathered | None:
        """Return the gathered unit of what this rank holds; None if it is gathered alone."""
        unit = mine.unit
        if unit is None:
            return None
        found = self.kept.get(unit)
        if found is not None and found.valid(mine):
            return self.gathered(unit, found.members)
        refuse_threads(self)
        if found is not None:
            self.drop(unit)
        members = unit.members()
        return None if members is None else self.gathered(unit, members)

    def plain(self, mine: Held) -> Tensor:
        """Return the whole tensor outside of any graph."""
        gathered = self.of(mine)
        if gathered is not None:
            return gathered.plain(mine.index)
        refuse_threads(self)
        with self._gathering():
            return whole_of_rows(all_gather([mine]), mine.layout)

    def separate(self, mine: Held) -> Tensor:
        """Return the whole in memory of its own, which is that of all tensors in the same shard.

        What is gathered otherwise is in the memory of its unit.
        """
        whole, memory = self.plain(mine), mine.memory
        now = mine.written()
        storage = memory.copy()
        with torch.inference_mode(False), torch.no_grad():
            if storage is None:
                flat = mine.layout.flat(whole).clone()
                storage = flat.untyped_storage()
                memory.copy = weakref.ref(storage)
            else:
                flat = torch.empty(0, dtype=whole.dtype, device=whole.device).set_(storage)
                if memory.copied != now:
                    flat.copy_(mine.layout.flat(whole))
            memory.copied = now
            return mine.layout.whole(flat)

    def addressed(self, mine: Held) -> Tensor:
        """Return the whole in memory of its own, which is kept until the end of a step.

        The address may be read by a kernel, or compared with that of other tensors.
        """
        whole = self.separate(mine)
        self._held.append(whole.untyped_storage())
        return whole

    def written(self, mine: Held) -> Tensor:
        """Return the whole for a file that is being written."""
        if self.saving is None:
            return self.separate(mine)
        refuse_threads(self)  # another thread may pickle meanwhile
        return self.saving.whole(mine)

    def shard(self, whole: Tensor, group: ShardGroup) -> Held:
        """Return what this rank holds of a whole tensor, which is gathered alone from now on."""
        (layout,), _ = cut_evenly([whole], group)
        return Held(self.agreement.cut(whole.detach(), layout).clone(), layout, self)

    def replicated(self, x: Tensor, why: str = "its data is a tensor of the script's") -> None:
        """Report that a parameter is replicated from now on."""
        self.view.report.say_once("parameters", users_line(2), f"parameters are replicated: {why}")

    def drop(self, unit: Unit) -> None:
        """Free what was gathered of a unit."""
        found = self.kept.pop(unit)
        self.by_address.pop(address(found.flat), None)

    def clear(self) -> None:
        """Free all that was gathered."""
        self.kept.clear()
        self.by_address.clear()
        self._held.clear()

    def before_step(self) -> None:
        """Free all that was gathered, and compare what was written."""
        self.clear()
        self.agreement.compare()

    @contextmanager
    def _gathering(self) -> Iterator[None]:
        """Make wholes that outlive inference mode, as a parameter is no inference tensor."""
        with self.internal(), torch.inference_mode(False), torch.no_grad():
            yield

    def internal(self) -> Any:
        """Return a context for collectives, which see neither transforms nor the script's modes."""
        return _Internal(self.view)


class _Internal:
    """The context of a collective."""

    def __init__(self, view: View) -> None:
        self._within = view.context.within(Code.PLAIN)
        self._contexts: list[Any] = []

    def __enter__(self) -> None:
        self._contexts = [self._within, plain_tensors()]
        if transform():
            self._contexts.append(outside_transforms())
        for each in self._contexts:
            each.__enter__()

    def __exit__(self, *raised: object) -> None:
        for each in reversed(self._contexts):
            each.__exit__(*raised)


def address(x: Tensor) -> int:
    """Return the address of a tensor's memory; 0 for one without, as a tangent of zeros."""
    try:
        return x.untyped_storage().data_ptr()
    except RuntimeError:
        return 0


def within(view: Tensor, whole: Tensor) -> bool:
    """Return whether a view begins in the memory of a whole parameter, not in its neighbour's."""
    start = byte_offset(whole)
    return start <= byte_offset(view) < start + max(1, whole.nbytes)


def byte_offset(x: Tensor) -> int:
    """Return where a tensor begins in its memory, in bytes: views may have another dtype."""
    return int(x.storage_offset()) * x.element_size()


def with_versions(func: Any) -> Any:
    """Return an operator that notes its writes, which autograd does only above itself."""
    arguments = func._schema.arguments
    writes = [x.alias_info is not None and x.alias_info.is_write for x in arguments]

    def call(*args: Any, **kwargs: Any) -> Any:
        out = func(*args, **kwargs)
        named = (kwargs.get(x.name) for x in arguments[len(args) :])
        for x in tree_leaves([*compress((*args, *named), writes)]):
            if isinstance(x, Tensor) and not x.is_inference():
                increment_version(x)
        return out

    return call
