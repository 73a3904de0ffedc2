"""Where the elements of a sharded parameter are, and the collectives that move them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from autoddp.training.parameters.shard import Held
    from autoddp.training.parameters.shard_group import ShardGroup

ALIGNED = 16  # bytes: the size of a complex128, and of what kernels read at once


@dataclass(frozen=True)
class Layout:
    """The shards of a tensor: its elements, in the order of its memory, cut once for each rank.

    Attributes:
        shape: The shape of the whole tensor.
        strides: Its strides, without gaps or overlaps.
        cuts: Rank `r` of the group holds the elements from `cuts[r]` to `cuts[r + 1]`.
        group: The ranks that hold one whole.
    """

    shape: torch.Size
    strides: tuple[int, ...]
    cuts: tuple[int, ...]
    group: ShardGroup

    def length(self, rank: int) -> int:
        """Return how many elements a rank holds."""
        return self.cuts[rank + 1] - self.cuts[rank]

    def shard(self, whole: Tensor) -> Tensor:
        """Return this rank's elements, as a view of a whole tensor's memory if it is laid so."""
        rank = self.group.rank
        return self.flat(whole)[self.cuts[rank] : self.cuts[rank + 1]]

    def flat(self, whole: Tensor) -> Tensor:
        """Return all elements in the order of memory, as a view if the strides are these."""
        if whole.stride() != self.strides:
            strided = torch.empty_strided(
                self.shape, self.strides, dtype=whole.dtype, device=whole.device
            )
            whole = strided.copy_(whole)
        return whole.as_strided((whole.numel(),), (1,))

    def whole(self, flat: Tensor, offset: int = 0) -> Tensor:
        """Return the tensor whose elements begin at an offset of flat memory; it is no view."""
        memory = flat.untyped_storage()
        made = torch.empty(0, dtype=flat.dtype, device=flat.device)
        return made.set_(memory, offset, self.shape, self.strides)


class Geometry:
    """How a view reads memory, which may be that of a parameter of another dtype."""

    def __init__(self, view: Tensor) -> None:
        self.dtype, self.shape, self.strides = view.dtype, view.size(), view.stride()
        self.conj, self.neg = view.is_conj(), view.is_neg()

    def at(self, memory: Tensor, offset: int) -> Tensor:
        """Return such a view of a tensor's memory, whose elements begin at an offset."""
        made = torch.empty(0, dtype=self.dtype, device=memory.device)
        made.set_(memory.untyped_storage(), offset, self.shape, self.strides)
        if self.conj:
            made = made.conj()
        return -made if self.neg else made


def is_dense(x: Tensor) -> bool:
    """Return whether a tensor's elements lie in its memory without gaps or overlaps."""
    if x.layout is not torch.strided or x.is_quantized or x.is_nested:
        return False
    expected = 1
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def cut_evenly(shapes: Sequence[Tensor], group: ShardGroup) -> tuple[list[Layout], list[int]]:
    """Cut the memory of several tensors, one after the other, into a part for each rank of a group.

    Each begins at a multiple of `ALIGNED` bytes, as one in memory of its own does: a view of
    another dtype needs that, and some kernels do.

    Returns:
        The layout of each tensor, and the offset at which it begins.
    """
    least = max(1, ALIGNED // shapes[0].element_size())
    offsets, end = [], 0
    for x in shapes:
        offsets.append(-(-end // least) * least)
        end = offsets[-1] + x.numel()
    step = _step(end, group)
    layouts = []
    for x, start in zip(shapes, offsets, strict=True):
        cuts = (min(max(r * step - start, 0), x.numel()) for r in range(group.size + 1))
        layouts.append(Layout(x.shape, x.stride(), tuple(cuts), group))
    return layouts, offsets


def _step(total: int, group: ShardGroup) -> int:
    """Return how many elements of a memory of so many each rank has, the last ones less."""
    return max(1, -(-total // group.size))


def all_gather(members: Sequence[Held], offsets: Sequence[int] = ()) -> Tensor:
    """Gather the shards of several tensors of one dtype, device and group, in one collective.

    Ranks compare how often their shards have been written into.

    Args:
        members: What this rank holds of each.
        offsets: Where each begins in the memory of all; the rows are that memory then.

    Returns:
        The elements of each rank as a row, one tensor after the other, with a rest to ignore.
    """
    group = members[0].layout.group
    own = [x.local.detach() for x in members]
    longest = max(sum(x.layout.length(r) for x in members) for r in range(group.size))
    if offsets:
        longest = _step(offsets[-1] + members[-1].layout.shape.numel(), group)
        own = _with_gaps(own, members, offsets, group.rank * longest)
    if (rest := longest - sum(map(len, own))) > 0:
        own.append(own[0].new_zeros(rest))
    writes = sum(x.memory.writes for x in members)
    return group.all_gather(torch.cat(own), f"all-gather of shards, after {writes} writes,")


def _with_gaps(
    own: list[Tensor], members: Sequence[Held], offsets: Sequence[int], place: int
) -> list[Tensor]:
    """Return a rank's shards, and what lies between them in memory that begins at a `place`."""
    found = []
    for x, mine, offset in zip(own, members, offsets, strict=True):
        begin = offset + mine.layout.cuts[mine.layout.group.rank]
        if len(x) and begin > place:
            found.append(x.new_zeros(begin - place))
        found.append(x)
        place = begin + len(x) if len(x) else place
    return found


def whole_of_rows(rows: Tensor, layout: Layout) -> Tensor:
    """Return a tensor that was gathered alone."""
    parts = [row[: layout.length(r)] for r, row in enumerate(rows)]
    return layout.whole(torch.cat(parts))


def reduce_scatter(wholes: Sequence[Tensor], layouts: Sequence[Layout]) -> list[Tensor]:
    """Average tensors of one dtype, device and group over all ranks; each keeps its shard."""
    group = layouts[0].group
    ranks = range(group.size)
    lengths = [sum(x.length(r) for x in layouts) for r in ranks]
    longest = max(lengths)
    flats = [x.flat(g) for x, g in zip(layouts, wholes, strict=True)]
    pieces: list[Tensor] = []
    for rank in ranks:
        pieces += [f[x.cuts[rank] : x.cuts[rank + 1]] for x, f in zip(layouts, flats, strict=True)]
        if lengths[rank] < longest:
            pieces.append(flats[0].new_zeros(longest - lengths[rank]))
    own = group.reduce_scatter(torch.cat(pieces))
    return list(own[: lengths[group.rank]].split([x.length(group.rank) for x in layouts]))
