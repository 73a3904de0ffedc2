"""Matrix products of rows and weights, and of batches of matrices of equal sizes."""

from __future__ import annotations

from string import ascii_letters
from typing import Any

from torch import Tensor

from autoddp.view.local_call import Const, LocalCall, LocalRows
from autoddp.view.rules.operands import MISALIGNED, aligned, any_sharded
from autoddp.view.rules.rows import last_dims, rowwise
from autoddp.view.sharded_tensor import is_sharded
from autoddp.view.table import rule


@rule("matmul", "__matmul__", "bmm", "mm", "mv")
def matmul(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Multiply rows by weights, or batches of matrices of equal sizes."""
    if kwargs or len(args) != 2 or not all(isinstance(x, Tensor) for x in args):
        return NotImplemented
    lead, other = args if is_sharded(args[0]) else args[::-1]
    dim, sizes = lead.placement
    from_end = lead.dim() - dim
    if from_end > 2 and other.dim() > 2:
        # the shard dimension is before the matrices; broadcasting aligns it from the end
        ndim = max(lead.dim(), other.dim())
        operand = aligned(other, sizes, ndim - from_end, ndim)
        if operand is MISALIGNED:
            return NotImplemented
        local = tuple(operand if x is other else x for x in args)
        return LocalCall(local, {}, (ndim - from_end, sizes))
    if is_sharded(other) or other.dim() > 2:
        return NotImplemented
    if from_end > 2 or (lead is args[0] and from_end == 2):
        return LocalCall(args, kwargs, lead.placement)  # matrices, or rows, by weights
    if lead is args[1] and lead.dim() == 2 and dim == 1:
        return LocalCall(args, kwargs, (other.dim() - 1, sizes))  # weights by columns
    return NotImplemented


@rule("addmm", "baddbmm")
def add_product(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute `addmm(bias, x, weight)` of rows `x`, or `baddbmm` of batches of matrices."""
    if len(args) != 3 or any_sharded(kwargs.values()) or kwargs.get("out") is not None:
        return NotImplemented
    lead = next(filter(is_sharded, args[1:]), None)
    if lead is None or lead.shard_dim != 0:
        return NotImplemented
    local = [aligned(x, lead.sizes, 0, lead.dim()) for x in args]
    if func.__name__ == "addmm":
        if lead is not args[1] or is_sharded(args[2]):
            return NotImplemented
        local[2] = args[2]
    elif not all(is_sharded(x) or type(x) is LocalRows for x in local[1:]):
        return NotImplemented
    misaligned = any(x is MISALIGNED for x in local)
    return NotImplemented if misaligned else LocalCall(local, kwargs, lead.placement)


@rule("cdist")
def distances(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute distances of rows, or of batches of them, from replicated points, or of batches.

    torch computes them by a product where either are more than 25, in the whole batch.
    """
    rows, points = args
    if not is_sharded(rows) or is_sharded(points):
        return rowwise(last_dims(2), False, func, args, kwargs)
    dim, behind = rows.shard_dim, rows.dim() - rows.shard_dim
    operand = points if behind == 2 else aligned(points, rows.sizes, dim, rows.dim())
    if behind == 1 or points.dim() > rows.dim() or operand is MISALIGNED:
        return NotImplemented
    if kwargs["compute_mode"].endswith("_if_necessary"):
        by_product = max(rows.shape[-2], points.shape[-2]) > 25
        mode = f"{'use' if by_product else 'donot_use'}_mm_for_euclid_dist"
        kwargs = {**kwargs, "compute_mode": Const(mode)}
    return LocalCall((rows, operand), kwargs, rows.placement)


@rule("einsum")
def einsum(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute `einsum` if one letter of the result is the batch of all sharded operands.

    Of a replicated operand with that letter, this rank's rows are used.
    """
    if len(args) < 2 or kwargs or type(args[0]) is not str:
        return NotImplemented
    listed = len(args) == 2 and isinstance(args[1], (tuple, list))
    operands = list(args[1]) if listed else list(args[1:])
    lead = next((k for k, x in enumerate(operands) if is_sharded(x)), None)
    subscripts = _subscripts(args[0], operands)
    if lead is None or subscripts is None:
        return NotImplemented
    names, result = subscripts
    me = operands[lead]
    letter = names[lead][me.shard_dim]
    local = [_with_letter(x, n, letter, me) for x, n in zip(operands, names, strict=True)]
    if any(x is MISALIGNED for x in local) or result.count(letter) != 1:
        return NotImplemented
    new = (type(args[1])(local),) if listed else tuple(local)
    placement = result.index(letter), me.sizes
    return LocalCall((args[0], *new), kwargs, placement, reorders=True)


def _subscripts(equation: str, operands: list[Any]) -> tuple[list[str], str] | None:
    """Return the letters of operands and result, with an ellipsis replaced by unused letters."""
    left, arrow, result = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(operands) or not all(isinstance(x, Tensor) for x in operands):
        return None
    if not arrow:
        once = (c for c in sorted({*left} - {*",."}) if left.count(c) == 1)
        result = "".join(["..." * ("..." in left), *once])
    extra = [x.dim() - len(t.replace("...", "")) for t, x in zip(terms, operands, strict=True)]
    spare = "".join(sorted({*ascii_letters} - {*equation}))[: max(extra)]
    names = [
        t.replace("...", spare[len(spare) - max(n, 0) :]) for t, n in zip(terms, extra, strict=True)
    ]
    return names, result.replace("...", spare)


def _with_letter(x: Any, names: str, letter: str, me: Any) -> Any:
    """Return the form of an `einsum` operand in a local call, with the batch under `letter`."""
    if names.count(letter) > 1 or len(names) != x.dim():
        return MISALIGNED
    if is_sharded(x):
        same = x.sizes is me.sizes and names[x.shard_dim] == letter
        return x if same else MISALIGNED
    if letter not in names:
        return x
    dim = names.index(letter)
    if x.shape[dim] == 1 != me.sizes.total:
        return x
    return LocalRows(dim) if x.shape[dim] == me.sizes.total else MISALIGNED
