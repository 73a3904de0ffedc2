"""Products of matrices: rows by weights, and batches of matrices by batches of equal sizes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from autoddp.view.local_call import LocalCall, LocalRows
from autoddp.view.rules.operands import UNCLEAR, aligned, any_sharded, bound, dim_of, dims_of
from autoddp.view.sharded_tensor import is_sharded
from autoddp.view.table import rule, rule_of


@rule("matmul", "__matmul__", "bmm", "mm", "mv")
def matmul(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Multiply rows by weights, or batches of matrices of equal sizes."""
    if kwargs or len(args) != 2 or not all(isinstance(x, Tensor) for x in args):
        return NotImplemented
    a, b = args
    if is_sharded(a) and is_sharded(b):
        # along a dimension before the matrices, which broadcasting aligns from behind
        ndim = max(a.dim(), b.dim())
        places = [ndim - x.dim() + x.shard_dim for x in (a, b)]
        if a.sizes is not b.sizes or places[0] != places[1] or min(a.dim(), b.dim()) < 3:
            return NotImplemented
        behind = ndim - places[0]
        return LocalCall(args, kwargs, (places[0], a.sizes)) if behind > 2 else NotImplemented
    me, other = (a, b) if is_sharded(a) else (b, a)
    before = me.dim() - me.shard_dim > 2  # the batch lies before the matrices
    if other.dim() <= 2 and before:
        if other.dim() == 1:
            return _by_vector(args, me)
        return LocalCall(args, kwargs, me.placement)
    if me is a and other.dim() <= 2 and me.dim() >= 2 and me.shard_dim == me.dim() - 2:
        return LocalCall(args, kwargs, me.placement)  # rows by weights
    if me is b and other.dim() <= 2 and me.dim() == 2 and me.shard_dim == 1:
        at = 1 if other.dim() == 2 else 0
        return LocalCall(args, kwargs, (at, me.sizes))  # weights by columns
    if before and other.dim() > 2:
        return _with_cut(args, me, other)
    return NotImplemented


def _by_vector(args: Any, me: Any) -> LocalCall:
    """Multiply matrices by one vector: a dimension behind the batch's is gone."""
    return LocalCall(args, {}, me.placement)


def _with_cut(args: Any, me: Any, other: Tensor) -> Any:
    """Multiply matrices of rows by replicated ones, of which each row has its own, or all one."""
    ndim = max(me.dim(), other.dim())
    dim = ndim - (me.dim() - me.shard_dim)
    found = aligned(other, me.sizes, dim, ndim)
    if found is UNCLEAR:
        return NotImplemented
    mine = tuple(found if x is other else x for x in args)
    return LocalCall(mine, {}, (dim, me.sizes))


@rule("addmm")
def addmm(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute `addmm(bias, x, weight)`, the rows of `x` sharded."""
    if len(args) != 3 or any_sharded(kwargs.values()) or kwargs.get("out") is not None:
        return NotImplemented
    bias, x, weight = args
    if not is_sharded(x) or x.shard_dim != 0 or is_sharded(weight) or x.dim() != 2:
        return NotImplemented
    bias = aligned(bias, x.sizes, 0, 2)
    return NotImplemented if bias is UNCLEAR else LocalCall((bias, x, weight), kwargs, x.placement)


@rule("baddbmm")
def baddbmm(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute `baddbmm(input, a, b)` for batches of matrices."""
    if len(args) != 3 or any_sharded(kwargs.values()) or kwargs.get("out") is not None:
        return NotImplemented
    lead = next((x for x in args[1:] if is_sharded(x)), None)
    if lead is None or lead.shard_dim != 0:
        return NotImplemented
    mine = tuple(aligned(x, lead.sizes, 0, 3) for x in args)
    if any(x is UNCLEAR for x in mine) or not all(
        is_sharded(x) or type(x) is LocalRows for x in mine[1:]
    ):
        return NotImplemented
    return LocalCall(mine, kwargs, lead.placement)


@rule("bilinear")
def bilinear(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute `bilinear` of two inputs of equal sizes."""
    if len(args) < 3 or not (is_sharded(args[0]) and is_sharded(args[1])) or is_sharded(args[2]):
        return NotImplemented
    a, b = args[:2]
    if a.placement != b.placement or a.shard_dim >= a.dim() - 1 or any_sharded(args[3:]):
        return NotImplemented
    return LocalCall(args, kwargs, a.placement)


@rule("einsum")
def einsum(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute `einsum` where all sharded operands have the batch under one letter, and the result.

    Of a replicated operand that has the letter a rank takes its rows.
    """
    if len(args) < 2 or kwargs or type(args[0]) is not str:
        return NotImplemented
    listed = len(args) == 2 and isinstance(args[1], (tuple, list))
    operands = list(args[1]) if listed else list(args[1:])
    lead = next((k for k, x in enumerate(operands) if is_sharded(x)), None)
    found = _subscripts(args[0], operands)
    if lead is None or found is None:
        return NotImplemented
    names, result = found
    me = operands[lead]
    letter = names[lead][me.shard_dim]
    mine = [_with_letter(x, n, letter, me) for x, n in zip(operands, names, strict=True)]
    if any(x is UNCLEAR for x in mine) or result.count(letter) != 1:
        return NotImplemented
    given = (type(args[1])(mine),) if listed else tuple(mine)
    return LocalCall((args[0], *given), kwargs, (result.index(letter), me.sizes))


def _subscripts(equation: str, operands: list[Any]) -> tuple[list[list[str]], list[str]] | None:
    """Return the letters of operands and result, with some for what an ellipsis stands for."""
    terms, arrow, result = equation.replace(" ", "").partition("->")
    listed = terms.split(",")
    if len(listed) != len(operands) or not all(isinstance(x, Tensor) for x in operands):
        return None
    spread = [x.dim() - len(t.replace("...", "")) for t, x in zip(listed, operands, strict=True)]
    most = max((n for t, n in zip(listed, spread, strict=True) if "..." in t), default=0)
    dots = [f"...{k}" for k in range(most)]
    names = []
    for term, n in zip(listed, spread, strict=True):
        if n < 0 or (n and "..." not in term):
            return None
        before, _, behind = term.partition("...")
        names.append([*before, *dots[most - n :], *behind])
    if arrow:
        before, ellipsis, behind = result.partition("...")
        return names, [*before, *(dots if ellipsis else []), *behind]
    letters = "".join(t.replace("...", "") for t in listed)
    return names, [*dots, *sorted(c for c in set(letters) if letters.count(c) == 1)]


def _with_letter(x: Any, names: list[str], letter: str, me: Any) -> Any:
    """Return how an operand of `einsum` takes part, the batch lying under `letter`."""
    if names.count(letter) > 1 or len(names) != x.dim():
        return UNCLEAR
    if is_sharded(x):
        same = x.sizes is me.sizes and names[x.shard_dim] == letter
        return x if same else UNCLEAR
    if letter not in names:
        return x
    dim = names.index(letter)
    if x.shape[dim] == 1 != me.sizes.total:
        return x
    return LocalRows(dim) if x.shape[dim] == me.sizes.total else UNCLEAR


@rule("outer", "ger")
def outer(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Multiply each element of one vector by each of another, of which one is sharded."""
    if len(args) != 2 or kwargs or is_sharded(args[0]) == is_sharded(args[1]):
        return NotImplemented
    at = int(is_sharded(args[1]))
    return LocalCall(args, kwargs, (at, args[at].sizes))


@rule("addmv")
def addmv(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute `addmv(bias, x, vector)`, the rows of `x` sharded."""
    if len(args) != 3 or any_sharded(kwargs.values()) or kwargs.get("out") is not None:
        return NotImplemented
    bias, x, vector = args
    if not is_sharded(x) or x.shard_dim != 0 or is_sharded(vector):
        return NotImplemented
    bias = aligned(bias, x.sizes, 0, 1)
    return NotImplemented if bias is UNCLEAR else LocalCall((bias, x, vector), kwargs, x.placement)


@rule("tensordot")
def tensordot(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Contract other dimensions of a sharded tensor with those of a replicated one."""
    given = bound(("a", "b", "dims", "out"), args, kwargs) or {}
    pair: list[Any] = [given.get("a"), given.get("b")]
    dims = given.get("dims", 2)
    if is_sharded(pair[0]) == is_sharded(pair[1]) or given.get("out") is not None:
        return NotImplemented
    second = is_sharded(pair[1])
    me, other = pair[second], pair[not second]
    if type(dims) is int:
        gone = list(range(dims)) if second else list(range(me.dim() - dims, me.dim()))
    else:
        listed = isinstance(dims, (tuple, list)) and len(dims) == 2
        gone = (dims_of(dims[second], me.dim()) or []) if listed else []
    if not gone or me.shard_dim in gone or not isinstance(other, Tensor):
        return NotImplemented
    at = me.shard_dim - sum(d < me.shard_dim for d in gone)
    return LocalCall(args, kwargs, (at + second * (other.dim() - len(gone)), me.sizes))


MATRICES = ["det", "logdet", "slogdet", "inv", "inverse", "inv_ex", "cholesky", "cholesky_ex"]
MATRICES += ["eigh", "eigvalsh", "eig", "eigvals", "svd", "svdvals", "qr", "pinv", "matrix_exp"]
MATRICES += ["pinverse", "matrix_power", "matrix_rank", "lu_factor", "lu_factor_ex", "cond"]
MATRICES += ["solve", "solve_ex", "solve_triangular", "cholesky_solve", "cholesky_inverse", "cdist"]


@rule(*MATRICES)
def each_matrix(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Decompose or solve by each matrix of a batch, which lies before the matrices."""
    given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    lead = next((x for x in given if is_sharded(x)), None)
    if lead is None or kwargs.get("out") is not None or lead.shard_dim >= lead.dim() - 2:
        return NotImplemented
    if not all(
        is_sharded(x) and x.placement == lead.placement and x.dim() == lead.dim() for x in given
    ):
        return NotImplemented
    if not lead.sizes.smallest or not lead.numel():
        return NotImplemented
    return LocalCall(args, kwargs, lead.placement)


@rule("cross", "vecdot")
def vectors(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Multiply vectors along another dimension, which `torch.cross` has to be told."""
    given = bound(("a", "b", "dim"), args, {k: v for k, v in kwargs.items() if k == "dim"}) or {}
    pair: Any = (given.get("a"), given.get("b"))
    if not all(map(is_sharded, pair)) or set(kwargs) - {"dim"}:
        return NotImplemented
    a, b = pair
    along = dim_of(given.get("dim", None if func is torch.cross else -1), a.dim())
    if a.placement != b.placement or a.shape != b.shape or along in (None, a.shard_dim):
        return NotImplemented
    if "cross" in func.__name__:
        return LocalCall(args, kwargs, a.placement)
    return LocalCall(args, kwargs, (a.shard_dim - (along < a.shard_dim), a.sizes))


def fourier(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Transform along other dimensions."""
    name = func.__name__
    shift = name.endswith("shift")
    names = ("input", "dim") if shift else ("input", "n", "dim", "norm")
    given = bound(names, args, {"n" if k == "s" else k: v for k, v in kwargs.items()}) or {}
    me = given.get("input")
    if not is_sharded(me) or given.get("out") is not None:
        return NotImplemented
    default = None if shift or name.endswith("n") else (-2, -1) if name.endswith("2") else -1
    dims = dims_of(given.get("dim", default), me.dim())
    if dims is None or me.shard_dim in dims or not me.sizes.smallest:
        return NotImplemented
    return LocalCall(args, kwargs, me.placement)


for _kind in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft"):
    for _name in (_kind, f"{_kind}2", f"{_kind}n"):
        rule_of(getattr(torch.fft, _name), fourier)
rule_of(torch.fft.fftshift, fourier)
rule_of(torch.fft.ifftshift, fourier)
