"""The standard losses: sums over this rank's rows, so that large logits never travel.

The denominator must be known to all ranks without talking: rows and elements are. For targets that
may hold ignored ones, each rank counts when it fetches the batch (`Tally`), and the sum travels
while the forward runs; where ranks talk from device to device the count is reduced there, with the
sum.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # the field's name for it

from autoddp.view.boundaries import SumOverRanks, named, node_of, part
from autoddp.view.rows import Partial, Rows, full, split
from autoddp.view.rules.operands import UNCLEAR, bound, operand, whole_operand
from autoddp.view.table import rule

IGNORED = -100  # torch's default ignore_index
LOW = (torch.float16, torch.bfloat16)


class Tally:
    """The number of ignored targets of a batch, summed over ranks while other work runs.

    It holds until these are written into; a copy gets one of its own, by `of`.
    """

    def __init__(self, rows: Rows) -> None:
        self.source, self.version = rows.local, rows.local._version
        self.hits = (rows.local == IGNORED).sum()
        self.work = rows.cuts.view.group.start_all_reduce(self.hits)

    def count(self, rows: Rows) -> int | None:
        """Return the number, None if the targets were changed since."""
        if self.source._version != self.version:
            return None
        self.work.wait()
        return int(self.hits)

    def of(self, rows: Rows) -> Tally | None:
        """Return the same number for a copy or view of the targets, None if these were changed."""
        if self.source._version != self.version or rows.local.is_inference():
            return None
        made = object.__new__(type(self))
        vars(made).update(vars(self))
        made.source, made.version = rows.local, rows.local._version
        return made


class Known(Tally):
    """The number of ignored targets of a batch that was seen as a whole: nothing travels."""

    def __init__(self, rows: Rows, hits: int) -> None:
        self.source, self.version = rows.local, rows.local._version
        self.known = hits

    def count(self, rows: Rows) -> int | None:
        """Return the number, None if the targets were changed since."""
        return self.known if self.source._version == self.version else None


def counted(rows: Rows, whole: Tensor | None = None, none_ignored: bool = False) -> Rows:
    """Return rows that were just fetched, with the count of ignored ones if they may be targets.

    Args:
        rows: This rank's part.
        whole: The rows of all ranks, where this one has seen them; else the count is under way,
            or left to the loss.
        none_ignored: Whether it is known that there is nothing to count.
    """
    if rows.local.dtype is torch.int64 and not rows.local.is_inference():
        if none_ignored:
            rows.tally = Known(rows, 0)
        elif whole is None:
            # an accelerator with a backend reduces the loss: for a count the host would wait
            view = rows.cuts.view
            rows.tally = None if view.group.native or view.context.in_thread() else Tally(rows)
        else:
            rows.tally = Known(rows, int((whole == IGNORED).sum()))
    return rows


def _sum(func: Any, *args: Any, **kwargs: Any) -> tuple[Tensor, torch.dtype]:
    """Sum a loss over this rank's rows; return the sum and the dtype that torch gives it.

    Half precision is summed in float32, where it cannot overflow; under autocast a loss is float32.
    """
    if args[0].dtype in LOW:
        out: Tensor = func(*args, reduction="none", **kwargs)
        return out.sum(dtype=torch.float32 if out.dtype in LOW else None), out.dtype
    total: Tensor = func(*args, reduction="sum", **kwargs)
    return total, total.dtype


ELEMENTS = (
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "kl_div",
    "soft_margin_loss",
)


MEANS = {"l1_loss": "MeanBackward0"}  # the node of a mean, where it is not that of the sum


@rule(*ELEMENTS)
def element_loss(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute a loss with a term for each element: the number of elements is known."""
    name = func.__name__
    given = dict(kwargs)
    reduction = given.pop("reduction", "mean")
    me = args[0] if args else None
    legacy = given.get("size_average") is not None or given.get("reduce") is not None
    if len(args) != 2 or not split(me) or me.at != 0 or legacy:
        return NotImplemented
    if not isinstance(args[1], Tensor) or args[1].shape != me.shape:
        return NotImplemented  # by shapes of the whole: those of one row are not every rank's
    if name == "mse_loss" and reduction == "mean" and given.get("weight") is not None:
        return NotImplemented  # it divides by the sum of the weights
    if reduction not in ("mean", "sum", "none") and (name, reduction) != ("kl_div", "batchmean"):
        return NotImplemented
    target = operand(args[1], me.cuts, 0, me.dim())
    given = {k: operand(v, me.cuts, 0, me.dim()) for k, v in given.items()}
    if target is UNCLEAR or UNCLEAR in given.values():
        return NotImplemented
    if reduction == "none":
        return Rows(func(me.local, target, reduction="none", **given), me.cuts, 0)
    if (name, reduction) == ("kl_div", "mean"):
        nothing = torch.zeros(1, device="cpu")
        func(nothing, nothing)  # warns of "mean", as on the whole
    total, dtype = _sum(func, me.local, target, **given)
    count = {"sum": 1, "mean": me.numel(), "batchmean": me.cuts.total}[reduction]
    node = MEANS.get(name, node_of(total)) if reduction == "mean" else ""
    return Partial(total if count == 1 else total / count, me.cuts.view, dtype, node=node)


@rule("cross_entropy", "nll_loss")
def class_loss(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute a loss with a term for each target that is not ignored."""
    names = ("input", "target", "weight", "size_average", "ignore_index", "reduce", "reduction")
    given = bound((*names, "label_smoothing"), args, kwargs)
    if given is None or func not in (F.cross_entropy, F.nll_loss):
        return NotImplemented
    me, target, reduction = given.pop("input"), given.pop("target"), given.pop("reduction", "mean")
    legacy = given.pop("size_average", None) is not None or given.pop("reduce", None) is not None
    if (
        not split(me)
        or me.at != 0
        or len(me.whole_shape) < 2
        or legacy
        or reduction not in ("mean", "sum", "none")
    ):
        return NotImplemented
    if given.get("label_smoothing") and given.get("weight") is not None and reduction == "mean":
        return NotImplemented
    mine = target.local if split(target) else full(target)
    if split(target) and (target.cuts is not me.cuts or target.at != 0):
        return NotImplemented
    if not split(target):
        if mine.dim() < 1 or mine.shape[0] != me.cuts.total:
            return NotImplemented
        mine = part(mine, me.cuts, 0)
    given = {k: whole_operand(v, me.cuts) for k, v in given.items()}
    if UNCLEAR in [v for v in given.values() if not isinstance(v, Tensor)]:
        return NotImplemented
    if reduction == "none":
        return Rows(func(me.local, mine, reduction="none", **given), me.cuts, 0)
    total, dtype = _sum(func, me.local, mine, **given)
    if reduction == "sum":
        return Partial(total, me.cuts.view, dtype)
    return _mean(me, total, target, mine, given, dtype)


def _mean(
    me: Rows, total: Tensor, target: Any, mine: Tensor, given: dict[str, Any], dtype: torch.dtype
) -> Any:
    """Divide the sum by its denominator: known, counted at the fetch, or reduced with the sum."""
    view, node = me.cuts.view, node_of(total)
    terms = prod(me.whole_shape) // max(me.whole_shape[1], 1)
    if mine.is_floating_point():  # class probabilities: none is ignored
        return Partial(
            total / terms, view, dtype, node=node if node == "AddBackward0" else "DivBackward1"
        )
    weight, ignore = given.get("weight"), given.get("ignore_index", IGNORED)
    if weight is None and not split(target):
        return Partial(total / (full(target) != ignore).sum(), view, dtype, node=node)
    if weight is None and ignore == IGNORED and target.tally is not None:
        hits = target.tally.count(target)
        if hits is not None:
            mean = total / (terms - hits) if terms > hits else total * float("nan")
            return Partial(mean, view, dtype, node=node)
    real = mine != ignore
    if weight is None:
        count = real.sum().to(total.dtype)
    else:
        count = weight[mine.where(real, 0)].mul(real).sum().to(total.dtype)
    both = view.group.all_reduce(torch.stack([total.detach(), count]))
    mean, mine = ((x / both[1]).to(dtype) for x in (both[0], total))
    return named(SumOverRanks, node).apply(mine, view.group, mean)
