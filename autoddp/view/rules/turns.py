"""Batches one behind the other, as the views of an image are: each is a turn of one batch.

A rank holds its rows of each turn. So a model is called with all of them, what it gives is taken
apart again, and no rank needs another's rows.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from autoddp.view.rows import Rows, split
from autoddp.view.rules.operands import related

SEQUENCES = 3  # dimensions of a batch of sequences; images have more


def one_behind_the_other(func: Any, tensors: Any, first: Rows, dim: int) -> Any:
    """Join batches along the batch, where a module may be called with what comes of it.

    Figures of an evaluation are small, and gathered: their mean has the bits of one process then.
    """
    joined = [x for x in tensors if not _adds_nothing(x, first)]
    if not all(split(x) and x.dim() == first.dim() for x in joined):
        return NotImplemented
    if first.dim() < SEQUENCES and not any(x.local.requires_grad for x in joined):
        return NotImplemented
    alike = all(x.cuts.sizes == first.cuts.sizes and x.at == first.at for x in joined)
    if not alike or not min(first.cuts.sizes):
        return NotImplemented
    cuts = first.cuts.view.cuts(first.cuts.sizes, sum(x.cuts.turns for x in joined))
    return Rows(func([x.local for x in joined], dim), cuts, first.at)


def _adds_nothing(x: Any, like: Rows) -> bool:
    """Return whether a tensor is `torch.empty(0)`, with which a loop begins to join."""
    return isinstance(x, Tensor) and not split(x) and x.shape == (0,) and x.dtype == like.dtype


def turns_apart(me: Rows, name: str, asked: Any) -> Any:
    """Take a batch that comes in turns apart between them, by `chunk` or `split`."""
    sizes = _sizes(name, asked, me.cuts.total)
    each = me.cuts.total // me.cuts.turns
    if len(sizes) < 2 or sum(sizes) != me.cuts.total or any(n < 1 or n % each for n in sizes):
        return NotImplemented
    here = me.cuts.mine // me.cuts.turns
    parts = me.local.split([n // each * here for n in sizes], me.at)
    cuts = [me.cuts.view.cuts(me.cuts.sizes, n // each) for n in sizes]
    return tuple(related(me, part, None, c) for part, c in zip(parts, cuts, strict=True))


def _sizes(name: str, asked: Any, total: int) -> list[int]:
    """Return the sizes of the parts that are asked for; none where that is not certain."""
    if type(asked) is int and asked > 0 and total % asked == 0:
        if name == "chunk":
            return [total // asked] * asked
        return [asked] * (total // asked) if name == "split" else []
    listed = isinstance(asked, (tuple, list)) and all(type(n) is int for n in asked)
    return [*asked] if name == "split" and listed else []
