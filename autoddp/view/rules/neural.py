"""Functions of layers: each row of a result needs the same row of the input, and the weights.

A table of names, each known from torch's documentation to treat one dimension as a batch. Only
speed rests on it: what is not in it gathers.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional as F  # the field's name for it

from autoddp.view.draws import DrawingCall
from autoddp.view.local_call import Const, LocalCall
from autoddp.view.rules.operands import UNCLEAR, aligned, any_sharded, bound, dim_of, same_placement
from autoddp.view.sharded_tensor import is_sharded
from autoddp.view.table import rule, rule_of

# name -> how many dimensions an input has when its first one is the batch (None: any)
BATCHED: dict[str, int | None] = {f"conv{n}d": n + 2 for n in (1, 2, 3)}
BATCHED |= {f"conv_transpose{n}d": n + 2 for n in (1, 2, 3)}
BATCHED |= {f"{kind}_pool{n}d": n + 2 for kind in ("max", "avg", "lp") for n in (1, 2, 3)}
BATCHED |= {f"adaptive_{kind}_pool{n}d": n + 2 for kind in ("max", "avg") for n in (1, 2, 3)}
BATCHED |= {f"max_pool{n}d_with_indices": n + 2 for n in (1, 2, 3)}
BATCHED |= {f"adaptive_max_pool{n}d_with_indices": n + 2 for n in (1, 2, 3)}
BATCHED |= {"pixel_shuffle": None, "pixel_unshuffle": None, "interpolate": None}
BATCHED |= {"upsample": None, "channel_shuffle": None, "fold": 3, "unfold": 4}
BATCHED |= {"local_response_norm": None, "prelu": None}
LEADING = {"pixel_shuffle": 3, "pixel_unshuffle": 3}  # name -> dimensions behind any batch
PAIRS = {f"max_unpool{n}d": n + 2 for n in (1, 2, 3)} | {"grid_sample": None}
FRACTIONAL = {f"fractional_max_pool{n}d": n + 2 for n in (2, 3)}
FRACTIONAL |= {f"{name}_with_indices": n for name, n in FRACTIONAL.items()}


def batched(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute convolutions, pools and norms over each row, the weights whole."""
    me, given = _input(args, kwargs)
    if not is_sharded(me) or me.dim() < 2 or any_sharded(given):
        return NotImplemented
    name = func.__name__
    if me.shard_dim >= (me.dim() - LEADING[name] if name in LEADING else 1):
        return NotImplemented
    if BATCHED[name] not in (None, me.dim()) or not (me.sizes.smallest and me.numel()):
        return NotImplemented
    return LocalCall(args, kwargs, me.placement)


def _input(args: Any, kwargs: dict[str, Any]) -> tuple[Any, list[Any]]:
    """Return the input of a function of layers, and all else that it is given."""
    rest = [value for name, value in kwargs.items() if name != "input" or args]
    me = args[0] if args else kwargs.get("input")
    return (None, []) if kwargs.get("out") is not None else (me, [*args[1:], *rest])


rule(*BATCHED)(batched)
rule_of(F.unfold, batched)  # Tensor.unfold is another function


@rule("group_norm")
def group_norm(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Normalize groups of channels of each row."""
    given = bound(("input", "num_groups", "weight", "bias", "eps"), args, kwargs) or {}
    me, groups = given.pop("input", None), given.get("num_groups")
    if not is_sharded(me) or me.shard_dim or me.dim() < 2 or any_sharded(given.values()):
        return NotImplemented
    if type(groups) is not int or groups < 1 or not me.numel():
        return NotImplemented
    each = me.shape[1:].numel() // groups
    if any(rows * each == 1 for rows in me.sizes.per_rank):
        return NotImplemented  # torch refuses a single value
    return LocalCall(args, kwargs, me.placement)


@rule(*PAIRS)
def pairs(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute on each row of an input and of what lies beside it: indices, or a grid."""
    if len(args) < 2 or not same_placement(args[:2]) or any_sharded([*args[2:], *kwargs.values()]):
        return NotImplemented
    me = args[0]
    wanted = PAIRS[func.__name__]
    if (
        me.shard_dim != 0
        or wanted not in (None, me.dim())
        or not (me.sizes.smallest and me.numel())
    ):
        return NotImplemented
    return LocalCall(args, kwargs, me.placement)


@rule("affine_grid")
def affine_grid(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Make a grid of each row's transformation; its size names the rows of the whole batch."""
    given = bound(("theta", "size", "align_corners"), args, kwargs) or {}
    me, size = given.get("theta"), given.get("size")
    if not is_sharded(me) or me.shard_dim != 0 or not isinstance(size, (list, tuple)):
        return NotImplemented
    if not me.sizes.smallest or not size or size[0] != me.sizes.total:
        return NotImplemented
    local = [Const(me.sizes.local), *size[1:]]
    args, kwargs = replaced(("theta", "size"), args, kwargs, {"size": local})
    return LocalCall(args, kwargs, me.placement)


@rule(*FRACTIONAL)
def fractional(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Pool over regions that are drawn for each row."""
    me, given = _input(args, kwargs)
    if not is_sharded(me) or me.shard_dim != 0 or any(isinstance(x, Tensor) for x in given):
        return NotImplemented
    if me.dim() != FRACTIONAL[func.__name__] or not me.sizes.smallest:
        return NotImplemented
    return DrawingCall(args, kwargs, me.placement, drawn=me.placement)


@rule("bilinear")
def bilinear(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute `bilinear` of two inputs, over the last dimension of each."""
    if len(args) < 3 or not same_placement(args[:2]) or any_sharded([*args[2:], *kwargs.values()]):
        return NotImplemented
    me = args[0]
    if me.shard_dim >= me.dim() - 1 or args[1].dim() != me.dim():
        return NotImplemented
    return LocalCall(args, kwargs, me.placement)


@rule("linear")
def linear(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute `linear`, over the last dimension."""
    me, given = _input(args, kwargs)
    if not is_sharded(me) or me.shard_dim == me.dim() - 1:
        return NotImplemented
    if any_sharded(given):
        return NotImplemented
    return LocalCall(args, kwargs, me.placement)


@rule("layer_norm", "rms_norm")
def layer_norm(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Normalize over the last dimensions."""
    given = bound(("input", "normalized_shape"), args[:2], kwargs) or {}
    me, shape = given.get("input"), given.get("normalized_shape", ())
    if not is_sharded(me) or me.shard_dim >= me.dim() - len(shape):
        return NotImplemented
    if any_sharded([*args[1:], *(v for v in kwargs.values() if v is not me)]):
        return NotImplemented
    return LocalCall(args, kwargs, me.placement)


@rule("normalize")
def normalize(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Give the vectors along another dimension than the batch's the length 1."""
    given = bound(("input", "p", "dim", "eps", "out"), args, kwargs) or {}
    me = given.get("input")
    if not is_sharded(me) or given.get("out") is not None:
        return NotImplemented
    along = dim_of(given.get("dim", 1), me.dim())
    if along is None or along == me.shard_dim:
        return NotImplemented
    return LocalCall(args, kwargs, me.placement)


EMBEDDING = ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq")


@rule("embedding")
def embedding(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Give each index its vector.

    With max_norm the table itself is changed, by indices of all, so that gathers.
    """
    given = bound((*EMBEDDING, "sparse"), args, kwargs)
    if given is None or func is not F.embedding or given.get("max_norm") is not None:
        return NotImplemented
    me = given.get("input")
    if not is_sharded(me) or is_sharded(given["weight"]) or given.get("scale_grad_by_freq"):
        return NotImplemented
    return LocalCall(args, kwargs, me.placement)


BAG: tuple[str, ...] = (
    "input",
    "weight",
    "offsets",
    "max_norm",
    "norm_type",
    "scale_grad_by_freq",
    "mode",
)
BAG += ("sparse", "per_sample_weights", "include_last_offset", "padding_idx")


@rule("embedding_bag")
def embedding_bag(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Reduce the vectors of each row's indices; bags that offsets cut may lie across ranks."""
    given = bound(BAG, args, kwargs)
    if given is None or func is not F.embedding_bag:
        return NotImplemented
    me, weights = given.get("input"), given.get("per_sample_weights")
    if not is_sharded(me) or me.dim() != 2 or me.shard_dim or is_sharded(given["weight"]):
        return NotImplemented
    if any(given.get(name) for name in ("max_norm", "scale_grad_by_freq", "include_last_offset")):
        return NotImplemented
    if given.get("offsets") is not None or not (weights is None or same_placement([me, weights])):
        return NotImplemented
    return LocalCall(args, kwargs, me.placement) if me.sizes.smallest else NotImplemented


ATTENTION = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


@rule("scaled_dot_product_attention")
def attention(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute attention of each row; with dropout the mask is drawn for all rows."""
    given = bound(ATTENTION, args, kwargs) or {}
    inputs = [given.get(name) for name in ATTENTION[:3]]
    lead = next((x for x in inputs if is_sharded(x)), None)
    if lead is None or any(x is None or x.dim() != lead.dim() for x in inputs):
        return NotImplemented
    dim, sizes = lead.placement
    if dim >= lead.dim() - (3 if given.get("enable_gqa") else 2):
        return NotImplemented
    mine = {n: _whole_rows(x, lead) for n, x in zip(ATTENTION, inputs, strict=False)}
    mask = given.get("attn_mask")
    if isinstance(mask, Tensor):
        fits = mask.dim() <= lead.dim()
        mine["attn_mask"] = aligned(mask, sizes, dim, lead.dim()) if fits else UNCLEAR
    if any(x is UNCLEAR for x in mine.values()):
        return NotImplemented
    args, kwargs = replaced(ATTENTION, args, kwargs, mine)
    if given.get("dropout_p"):
        if not sizes.smallest:
            return NotImplemented  # a rank without rows draws nothing
        return DrawingCall(args, kwargs, lead.placement, drawn=lead.placement)
    return LocalCall(args, kwargs, lead.placement)


def _whole_rows(x: Any, lead: Any) -> Any:
    """Return how query, key or value takes part, which has all rows of the batch."""
    dim, sizes = lead.placement
    return aligned(x, sizes, dim, x.dim()) if x.shape[dim] == sizes.total else UNCLEAR


def replaced(
    names: tuple[str, ...], args: Any, kwargs: dict[str, Any], new: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Return the arguments with `new` ones in the place of those of the same names."""
    args = [new.get(n, x) for n, x in zip(names, args, strict=False)] + list(args[len(names) :])
    return args, {name: new.get(name, x) for name, x in kwargs.items()}
