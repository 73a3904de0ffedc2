"""Functions that treat a dimension as a batch: each row of a result needs that row of the inputs.

One table says which dimensions a function mixes, known from torch's documentation. Where the batch
lies along another one, the function is called on local rows. Only speed rests on it: what is not in
the table gathers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # the field's name for it

from autoddp.view.local_call import LocalCall, LocalRows
from autoddp.view.rules.operands import UNCLEAR, any_sharded, arguments, dims_of
from autoddp.view.sharded_tensor import ShardedTensor, is_sharded
from autoddp.view.table import in_place, rule

# Which dimensions a call mixes, of an input of so many; None where no dimension is a batch.
Mixed = Callable[[dict[str, Any], int], list[int] | None]
# arguments that have the rows of the input; any other tensor is a weight, which is replicated
BESIDE = {"other", "y", "x2", "input2", "B", "indices", "grid", "per_sample_weights"}
BESIDE |= {"prepend", "append", "src", "source"}


def named(given: dict[str, Any], ndim: int) -> list[int] | None:
    """Return the dimensions that the argument `dim` names, or `dims`."""
    return dims_of(given.get("dim", given.get("dims")), ndim)


def last(count: int) -> Mixed:
    """Return what mixes the last dimensions, so many of them."""
    return lambda given, ndim: list(range(ndim - count, ndim)) if ndim > count else None


def behind_first(wanted: int | None = None) -> Mixed:
    """Return what mixes all but the first dimension, of an input of so many (None: any)."""
    return lambda given, ndim: list(range(1, ndim)) if ndim == (wanted or max(ndim, 2)) else None


def none(given: dict[str, Any], ndim: int) -> list[int] | None:
    """Mix no dimension: what comes of an element lies at its place."""
    return []


def _normalized(given: dict[str, Any], ndim: int) -> list[int] | None:
    """Return the dimensions over which `layer_norm` normalizes."""
    return last(len(given["normalized_shape"]))(given, ndim)


def _padded(given: dict[str, Any], ndim: int) -> list[int] | None:
    """Return the dimensions that are padded; a width of zero pads nothing."""
    widths = [*given["pad"]]
    while widths[-2:] == [0, 0]:
        del widths[-2:]
    return last(len(widths) // 2)(given, ndim)


def _looked_up(given: dict[str, Any], ndim: int) -> list[int] | None:
    """Mix nothing; with these options of `embedding` the indices of all rows count."""
    return None if given["max_norm"] is not None or given["scale_grad_by_freq"] else []


def _bags(given: dict[str, Any], ndim: int) -> list[int] | None:
    """Mix what is in a bag: a row of indices. Bags that offsets cut may lie across ranks."""
    options = ("max_norm", "scale_grad_by_freq", "include_last_offset")
    if given["offsets"] is not None or any(given[name] for name in options):
        return None
    return behind_first(2)(given, ndim)


def _classes(given: dict[str, Any], ndim: int) -> list[int] | None:
    """Mix nothing if the number of classes is given; else the whole batch decides on it."""
    return [] if given["num_classes"] > 0 else None


KEPT: dict[str, Mixed] = dict.fromkeys(
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
    named,
)
KEPT |= {"linear": last(1), "bilinear": last(1), "layer_norm": _normalized, "rms_norm": _normalized}
KEPT |= {"pad": _padded, "embedding_bag": _bags, "one_hot": _classes, "isin": none}
KEPT |= {"bucketize": none, "pixel_shuffle": last(3), "pixel_unshuffle": last(3)}
KEPT |= dict.fromkeys(
    (
        *("tril", "triu", "det", "logdet", "slogdet", "inv", "inverse", "cholesky", "eigh"),
        *("eigvalsh", "svd", "svdvals", "qr", "pinv", "matrix_exp", "solve", "cdist"),
    ),
    last(2),
)
KEPT |= dict.fromkeys(
    ("interpolate", "upsample", "channel_shuffle", "local_response_norm", "prelu", "grid_sample"),
    behind_first(),
)
for _n in (1, 2, 3):
    _names = [f"conv{_n}d", f"conv_transpose{_n}d", f"max_unpool{_n}d"]
    _names += [f"{kind}_pool{_n}d" for kind in ("max", "avg", "lp")]
    _names += [f"adaptive_{kind}_pool{_n}d" for kind in ("max", "avg")]
    _names += [f"{kind}max_pool{_n}d_with_indices" for kind in ("", "adaptive_")]
    KEPT |= dict.fromkeys(_names, behind_first(_n + 2))
GONE: dict[str, Mixed] = dict.fromkeys(
    (
        *("argmax", "argmin", "logsumexp", "amax", "amin", "prod", "var", "std", "median", "mode"),
        *("nansum", "nanmean", "nanmedian", "count_nonzero", "aminmax", "var_mean", "std_mean"),
        *("norm", "kthvalue", "vector_norm", "matrix_norm", "vecdot", "cosine_similarity"),
    ),
    named,
) | {"pairwise_distance": last(1)}


def by_rows(mixed: Mixed, gone: bool, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Call on local rows what mixes other dimensions, which are `gone` unless it keeps them."""
    given = arguments(func, args, kwargs)
    if not given or given.get("out") is not None:
        return NotImplemented
    names = {next(iter(given)), *(BESIDE & given.keys())}
    if isinstance(index := given.get("index"), Tensor) and index.dim() > 1:
        names.add("index")  # of each row its own, as `gather` takes it
    rows = {name: x for name in names if isinstance(x := given[name], Tensor)}
    lead = next(filter(is_sharded, rows.values()), None)
    if lead is None or any_sharded(x for name, x in given.items() if name not in rows):
        return NotImplemented
    dims = mixed(given, lead.dim())
    if dims is None or lead.shard_dim in dims or not lead.numel():
        return NotImplemented
    mine = {name: of_rows(x, lead) for name, x in rows.items()}
    if any(x is UNCLEAR for x in mine.values()) or (in_place(func) and not is_sharded(args[0])):
        return NotImplemented
    at, sizes = lead.placement
    if gone and not given.get("keepdim"):
        at -= sum(dim < at for dim in dims)
    args, kwargs = replaced(given, args, kwargs, mine)
    return LocalCall(args, kwargs, (at, sizes), in_place=in_place(func))


def of_rows(x: Tensor, lead: ShardedTensor) -> Any:
    """Return how a tensor takes part that has as many rows along the same dimension as `lead`."""
    if x.dim() != lead.dim() or x.shape[lead.shard_dim] != lead.sizes.total:
        return UNCLEAR
    if is_sharded(x):
        return x if x.placement == lead.placement else UNCLEAR
    return LocalRows(lead.shard_dim) if x.layout is torch.strided else UNCLEAR


def replaced(
    names: Any, args: Any, kwargs: dict[str, Any], new: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Return the arguments with `new` ones in the place of those of the same names."""
    args = [new.get(name, x) for name, x in zip(names, args, strict=False)]
    return args, {name: new.get(name, x) for name, x in kwargs.items()}


for _gone, _table in ((False, KEPT), (True, GONE)):
    for _name, _mixed in _table.items():
        rule(_name)(partial(by_rows, _mixed, _gone))
rule(F.embedding)(partial(by_rows, _looked_up, False))  # of torch.embedding the table is first
rule(F.unfold)(partial(by_rows, behind_first(4), False))  # Tensor.unfold is another function
rule(F.fold)(partial(by_rows, behind_first(3), False))


@rule("group_norm")
def group_norm(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Normalize groups of channels of each row; torch refuses a group of a single value."""
    given = arguments(func, args, kwargs)
    if not given or given["input"].shape[1:].numel() == given["num_groups"]:
        return NotImplemented
    return by_rows(behind_first(), False, func, args, kwargs)
