"""Functions that compute each row of the result from the same row of the inputs.

A table lists the dimensions that each function mixes, according to torch's documentation. If the
shard dimension is another one, the function is called on local rows. Only speed depends on the
table: other functions gather.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # the field's name for it

from autoddp.view.local_call import LocalCall, LocalRows
from autoddp.view.rules.operands import MISALIGNED, any_sharded, arguments, dims_of
from autoddp.view.sharded_tensor import ShardedTensor, is_sharded
from autoddp.view.table import in_place, rule

# (arguments, number of dimensions) -> dimensions that a call mixes; None if unknown
MixedDims = Callable[[dict[str, Any], int], list[int] | None]
# arguments with the rows of the input; other tensors are weights, and replicated
ROW_ARGUMENTS = {"other", "y", "x2", "input2", "B", "indices", "grid", "per_sample_weights"}
ROW_ARGUMENTS |= {"prepend", "append", "src", "source"}


def named_dims(bound: dict[str, Any], ndim: int) -> list[int] | None:
    """Return the dimensions in the argument `dim` or `dims`."""
    return dims_of(bound.get("dim", bound.get("dims")), ndim)


def last_dims(count: int) -> MixedDims:
    """Return a function that lists the last `count` dimensions."""
    return lambda bound, ndim: list(range(ndim - count, ndim)) if ndim > count else None


def all_but_first(count: int | None = None) -> MixedDims:
    """Return a function that lists all but the first of `wanted` dimensions (None: of any)."""
    return lambda bound, ndim: list(range(1, ndim)) if ndim == (count or max(ndim, 2)) else None


def no_dims(bound: dict[str, Any], ndim: int) -> list[int] | None:
    """Return no dimensions: each element of the result depends on one element."""
    return []


def _layer_norm(bound: dict[str, Any], ndim: int) -> list[int] | None:
    """Return the dimensions over which `layer_norm` normalizes."""
    return last_dims(len(bound["normalized_shape"]))(bound, ndim)


def _pad(bound: dict[str, Any], ndim: int) -> list[int] | None:
    """Return the padded dimensions; a width of zero pads nothing."""
    widths = [*bound["pad"]]
    while widths[-2:] == [0, 0]:
        del widths[-2:]
    return last_dims(len(widths) // 2)(bound, ndim)


def _embedding(bound: dict[str, Any], ndim: int) -> list[int] | None:
    """Return no dimensions, None for options that read the indices of all rows."""
    return None if bound["max_norm"] is not None or bound["scale_grad_by_freq"] else []


def _embedding_bag(bound: dict[str, Any], ndim: int) -> list[int] | None:
    """Return the dimension of a bag, None for bags given by offsets, which may span ranks."""
    options = ("max_norm", "scale_grad_by_freq", "include_last_offset")
    if bound["offsets"] is not None or any(bound[name] for name in options):
        return None
    return all_but_first(2)(bound, ndim)


def _one_hot(bound: dict[str, Any], ndim: int) -> list[int] | None:
    """Return no dimensions if the number of classes is given; else it depends on all rows."""
    return [] if bound["num_classes"] > 0 else None


KEEP_DIMS: dict[str, MixedDims] = dict.fromkeys(
    (
        *("softmax", "log_softmax", "softmin", "cumsum", "cumprod", "cumsum_", "cumprod_"),
        *("cummax", "cummin", "logcumsumexp", "diff", "sort", "argsort", "topk", "glu"),
        *("normalize", "flip", "roll", "rot90", "cross", "index_select", "gather"),
        *("scatter", "scatter_", "scatter_add", "scatter_add_", "scatter_reduce"),
        *("scatter_reduce_", "take_along_dim", "index_add", "index_add_", "index_copy"),
        *("index_copy_", "index_fill", "index_fill_"),
        *("fft", "ifft", "rfft", "irfft", "fft2", "ifft2", "rfft2", "irfft2"),
        *("fftn", "ifftn", "rfftn", "irfftn", "fftshift", "ifftshift"),
    ),
    named_dims,
)
KEEP_DIMS |= {
    "linear": last_dims(1),
    "bilinear": last_dims(1),
    "layer_norm": _layer_norm,
    "rms_norm": _layer_norm,
}
KEEP_DIMS |= {"pad": _pad, "embedding_bag": _embedding_bag, "one_hot": _one_hot, "isin": no_dims}
KEEP_DIMS |= {"bucketize": no_dims, "pixel_shuffle": last_dims(3), "pixel_unshuffle": last_dims(3)}
KEEP_DIMS |= dict.fromkeys(
    (
        *("tril", "triu", "det", "logdet", "slogdet", "inv", "inverse", "cholesky", "eigh"),
        *("eigvalsh", "svd", "svdvals", "qr", "pinv", "matrix_exp", "solve"),
    ),
    last_dims(2),
)
KEEP_DIMS |= dict.fromkeys(
    ("interpolate", "upsample", "channel_shuffle", "local_response_norm", "prelu", "grid_sample"),
    all_but_first(),
)
for _n in (1, 2, 3):
    _names = [f"conv{_n}d", f"conv_transpose{_n}d", f"max_unpool{_n}d"]
    _names += [f"{kind}_pool{_n}d" for kind in ("max", "avg", "lp")]
    _names += [f"adaptive_{kind}_pool{_n}d" for kind in ("max", "avg")]
    _names += [f"{kind}max_pool{_n}d_with_indices" for kind in ("", "adaptive_")]
    KEEP_DIMS |= dict.fromkeys(_names, all_but_first(_n + 2))
DROP_DIMS: dict[str, MixedDims] = dict.fromkeys(
    (
        *("argmax", "argmin", "logsumexp", "amax", "amin", "prod", "var", "std", "median", "mode"),
        *("nansum", "nanmean", "nanmedian", "count_nonzero", "aminmax", "var_mean", "std_mean"),
        *("norm", "kthvalue", "vector_norm", "matrix_norm", "vecdot", "cosine_similarity"),
    ),
    named_dims,
) | {"pairwise_distance": last_dims(1)}


def rowwise(mixed_dims: MixedDims, drop: bool, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Call a function on local rows if it mixes other dimensions; `drop`: it removes those."""
    bound = arguments(func, args, kwargs)
    if not bound or bound.get("out") is not None:
        return NotImplemented
    names = {next(iter(bound)), *(ROW_ARGUMENTS & bound.keys())}
    if isinstance(index := bound.get("index"), Tensor) and index.dim() > 1:
        names.add("index")  # an index for each row, as in `gather`
    rows = {name: x for name in names if isinstance(x := bound[name], Tensor)}
    lead = next(filter(is_sharded, rows.values()), None)
    if lead is None or any_sharded(x for name, x in bound.items() if name not in rows):
        return NotImplemented
    dims = mixed_dims(bound, lead.dim())
    if dims is None or lead.shard_dim in dims or not lead.numel():
        return NotImplemented
    local = {name: row_operand(x, lead) for name, x in rows.items()}
    if any(x is MISALIGNED for x in local.values()) or (in_place(func) and not is_sharded(args[0])):
        return NotImplemented
    at, sizes = lead.placement
    if drop and not bound.get("keepdim"):
        at -= sum(dim < at for dim in dims)
    args, kwargs = with_arguments(bound, args, kwargs, local)
    return LocalCall(args, kwargs, (at, sizes), in_place=in_place(func))


def row_operand(x: Tensor, lead: ShardedTensor) -> Any:
    """Return the operand of a local call for a tensor whose rows correspond to those of `lead`."""
    if x.dim() != lead.dim() or x.shape[lead.shard_dim] != lead.sizes.total:
        return MISALIGNED
    if is_sharded(x):
        return x if x.placement == lead.placement else MISALIGNED
    return LocalRows(lead.shard_dim) if x.layout is torch.strided else MISALIGNED


def with_arguments(
    names: Any, args: Any, kwargs: dict[str, Any], new: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Return the arguments, with those named in `new` replaced."""
    args = [new.get(name, x) for name, x in zip(names, args, strict=False)]
    return args, {name: new.get(name, x) for name, x in kwargs.items()}


for _gone, _table in ((False, KEEP_DIMS), (True, DROP_DIMS)):
    for _name, _mixed in _table.items():
        rule(_name)(partial(rowwise, _mixed, _gone))
rule(F.embedding)(
    partial(rowwise, _embedding, False)
)  # torch.embedding has another order of arguments
rule(F.unfold)(partial(rowwise, all_but_first(4), False))  # Tensor.unfold is another function
rule(F.fold)(partial(rowwise, all_but_first(3), False))


@rule("group_norm")
def group_norm(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Normalize groups of channels in each row; torch raises for groups of a single value."""
    bound = arguments(func, args, kwargs)
    if not bound or bound["input"].shape[1:].numel() == bound["num_groups"]:
        return NotImplemented
    return rowwise(all_but_first(), False, func, args, kwargs)
