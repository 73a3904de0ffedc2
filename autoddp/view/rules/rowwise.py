"""Functions of layers: each row of the result needs the same row of the input, and the weights.

A table of names, each known from torch's documentation to treat the first dimension as a batch.
Only speed rests on it: what is not in it gathers.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional as F  # the field's name for it

from autoddp.view.rows import Rows, full, split
from autoddp.view.rules.operands import UNCLEAR, bound, operand, rewrap, whole_operand
from autoddp.view.table import rule

# name -> how many dimensions an input has when its first one is the batch (None: any)
BATCHED: dict[str, int | None] = {f"conv{n}d": n + 2 for n in (1, 2, 3)}
BATCHED |= {f"conv_transpose{n}d": n + 2 for n in (1, 2, 3)}
BATCHED |= {f"{kind}_pool{n}d": n + 2 for kind in ("max", "avg") for n in (1, 2, 3)}
BATCHED |= {f"adaptive_{kind}_pool{n}d": n + 2 for kind in ("max", "avg") for n in (1, 2, 3)}
BATCHED |= {"group_norm": None, "pixel_shuffle": 4, "pixel_unshuffle": 4, "interpolate": None}
BATCHED |= {"fold": 3, "local_response_norm": None, "prelu": None}


@rule(*BATCHED)
def batched(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute convolutions, pools and norms over each row, the weights whole."""
    me, *rest = args
    if not split(me) or me.at != 0 or "out" in kwargs or me.dim() < 2:
        return NotImplemented
    wanted = BATCHED.get(func.__name__)
    if wanted is not None and me.dim() != wanted:
        return NotImplemented
    mine = [whole_operand(x, me.cuts) for x in rest]
    named = {k: whole_operand(v, me.cuts) for k, v in kwargs.items()}
    if any(x is UNCLEAR for x in [*mine, *named.values()]) or not (me.cuts.smallest and me.numel()):
        return NotImplemented
    return rewrap(func(me.local, *mine, **named), me.cuts, 0)


@rule("linear")
def linear(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute `linear`, over the last dimension."""
    me, *rest = args
    if not split(me) or me.at == me.dim() - 1:
        return NotImplemented
    mine = [whole_operand(x, me.cuts) for x in rest]
    named = {k: whole_operand(v, me.cuts) for k, v in kwargs.items()}
    if any(x is UNCLEAR for x in [*mine, *named.values()]):
        return NotImplemented
    return Rows(func(me.local, *mine, **named), me.cuts, me.at)


@rule("layer_norm", "rms_norm")
def layer_norm(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Normalize over the last dimensions."""
    given = bound(("input", "normalized_shape", "weight", "bias", "eps"), args, kwargs)
    if func.__name__ == "rms_norm":
        given = bound(("input", "normalized_shape", "weight", "eps"), args, kwargs)
    me = given.pop("input", None) if given else None
    if given is None or not split(me) or me.at >= me.dim() - len(given["normalized_shape"]):
        return NotImplemented
    named = {k: whole_operand(v, me.cuts) for k, v in given.items()}
    if any(x is UNCLEAR for x in named.values()):
        return NotImplemented
    return Rows(func(me.local, **named), me.cuts, me.at)


@rule("normalize")
def normalize(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Give the vectors along another dimension than the batch's the length 1."""
    given = bound(("input", "p", "dim", "eps", "out"), args, kwargs) or {}
    me, dim = given.pop("input", None), given.get("dim", 1)
    if not split(me) or type(dim) is not int or given.pop("out", None) is not None:
        return NotImplemented
    if not -me.dim() <= dim < me.dim() or dim % me.dim() == me.at:
        return NotImplemented
    return Rows(func(me.local, **given), me.cuts, me.at)


@rule("embedding")
def embedding(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Give each index its vector.

    With max_norm the table itself is changed, by indices of all, so that gathers.
    """
    given = bound(
        ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse"),
        args,
        kwargs,
    )
    if given is None or func is not F.embedding or given.get("max_norm") is not None:
        return NotImplemented
    me = given.pop("input")
    if not split(me) or given.get("scale_grad_by_freq"):
        return NotImplemented
    weight = whole_operand(given.pop("weight"), me.cuts)
    return (
        NotImplemented
        if weight is UNCLEAR
        else Rows(func(me.local, weight, **given), me.cuts, me.at)
    )


@rule("matmul", "__matmul__", "bmm", "mm")
def matmul(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Multiply rows by weights, or batches of matrices of equal cuts."""
    if kwargs or len(args) != 2 or not split(args[0]):
        return NotImplemented
    a, b = args
    if split(b):
        same = a.cuts is b.cuts and a.at == b.at == 0 and a.dim() == b.dim() >= 3
        return Rows(func(a.local, b.local), a.cuts, 0) if same else NotImplemented
    b = full(b)
    if not isinstance(b, Tensor) or b.dim() > 2 or a.at == a.dim() - 1 or a.dim() < 2:
        return NotImplemented
    return Rows(func(a.local, whole_operand(b, a.cuts)), a.cuts, a.at)


@rule("scaled_dot_product_attention")
def attention(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute attention of query, key and value of equal cuts; its dropout draws: not for us."""
    names = ("query", "key", "value", "attn_mask", "dropout_p")
    given = bound(names, args, kwargs)
    if given is None or given.get("dropout_p", 0.0):
        return NotImplemented
    q, k, v = (given.pop(name, None) for name in names[:3])
    mask = given.pop("attn_mask", None)
    if not all(
        split(x) and x.at == 0 and x.cuts is q.cuts and x.dim() == q.dim() for x in (q, k, v)
    ):
        return NotImplemented
    if q.dim() < 3:
        return NotImplemented
    mask = operand(mask, q.cuts, 0, q.dim())
    if mask is UNCLEAR:
        return NotImplemented
    out: Tensor = func(q.local, k.local, v.local, mask, **given)
    return Rows(out, q.cuts, 0)


@rule("pad")
def pad(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Pad the last dimensions."""
    me = args[0]
    widths = kwargs.get("pad", args[1] if len(args) > 1 else None)
    if (
        not split(me)
        or not isinstance(widths, (tuple, list))
        or me.at >= me.dim() - len(widths) // 2
    ):
        return NotImplemented
    mode = kwargs.get("mode", args[2] if len(args) > 2 else "constant")
    if mode != "constant" and (me.at != 0 or me.dim() < 3):
        return NotImplemented
    return Rows(func(me.local, *args[1:], **kwargs), me.cuts, me.at)


@rule("tril", "triu")
def matrices(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Keep a triangle of each row's matrix."""
    me, *rest = args
    if not split(me) or me.at >= me.dim() - 2 or "out" in kwargs:
        return NotImplemented
    return Rows(func(me.local, *rest, **kwargs), me.cuts, me.at)
