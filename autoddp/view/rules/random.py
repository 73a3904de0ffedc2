"""Random functions of the script: drawn for the whole batch, of which a rank keeps its rows."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from autoddp.view.draws import DrawingCall
from autoddp.view.local_call import LocalCall
from autoddp.view.redistribute import part
from autoddp.view.rules.operands import UNCLEAR, aligned, any_sharded, bound
from autoddp.view.sharded_tensor import ShardedTensor, is_sharded
from autoddp.view.table import computed, functions, rule

# name -> how many dimensions an input has whose first one is the batch (None: any)
CHANNELS = {"dropout1d": 3, "dropout2d": None, "dropout3d": 5}
CHANNELS |= {"feature_alpha_dropout": None, "feature_dropout": None}
LIKE = ("rand_like", "randn_like", "randint_like")
FILLS = (
    *("uniform_", "normal_", "exponential_", "bernoulli_", "random_", "log_normal_"),
    *("geometric_", "cauchy_"),
)


@rule("dropout", "alpha_dropout", *CHANNELS)
def dropout(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Draw the mask of the whole batch; without training the input itself is returned."""
    of_torch = func not in set(functions_of_layers(func.__name__))
    names = ("input", "p", "train") if of_torch else ("input", "p", "training", "inplace")
    given = bound(names, args, kwargs)
    if given is None or not args or not is_sharded(args[0]) or any_sharded([*kwargs.values()]):
        return NotImplemented
    me, name = args[0], func.__name__
    writes = bool(given.get("inplace"))
    if not given.get(names[2], "alpha" not in name) or not given.get("p", 0.5):
        return LocalCall(args, kwargs, me.placement, aliases=True, in_place=writes)
    if not me.sizes.smallest or (name in CHANNELS and (me.dim() < 2 or me.shard_dim > 1)):
        return NotImplemented  # a rank without rows draws nothing; or the mask has no rows
    if CHANNELS.get(name) not in (None, me.dim()):
        return NotImplemented  # without a batch a dimension is put in front
    return DrawingCall(args, kwargs, me.placement, in_place=writes, drawn=me.placement)


def functions_of_layers(name: str) -> list[Any]:
    """Return torch.nn.functional's functions of this name."""
    return [f for f in functions(name) if f.__module__ == "torch.nn.functional"]


@rule("rrelu", "rrelu_")
def rrelu(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Scale negative elements by a constant; in training how many are drawn depends on values."""
    given = bound(("input", "lower", "upper", "training", "inplace"), args, kwargs)
    if given is None or not args or not is_sharded(args[0]) or given.get("training"):
        return NotImplemented
    writes = bool(given.get("inplace")) or func.__name__ == "rrelu_"
    return LocalCall(args, kwargs, args[0].placement, in_place=writes)


@rule(*LIKE, *FILLS)
def noise(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Draw noise as one process does, so that every generator is as there afterwards."""
    me, *rest = args
    if not is_sharded(me) or any(isinstance(x, Tensor) for x in (*rest, *kwargs.values())):
        return NotImplemented
    if kwargs.get("generator") is not None or not me.sizes.smallest:
        return NotImplemented
    writes = func.__name__ in FILLS
    return DrawingCall(args, kwargs, me.placement, in_place=writes, drawn=me.placement)


@rule("normal")
def normal(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Draw around means, with deviations, of which at least one is sharded."""
    tensors = [x for x in args if isinstance(x, Tensor)]
    lead = next((x for x in tensors if is_sharded(x)), None)
    if kwargs or len(args) != 2 or lead is None or any(x.dim() != lead.dim() for x in tensors):
        return NotImplemented
    dim, sizes = lead.placement
    if not sizes.smallest:
        return NotImplemented
    mine = [aligned(x, sizes, dim, lead.dim()) for x in args]
    if any(x is UNCLEAR for x in mine):
        return NotImplemented
    return DrawingCall(mine, kwargs, lead.placement, drawn=lead.placement)


@computed("bernoulli", "multinomial")
def of_probabilities(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Draw by the probabilities of all rows, and keep this rank's rows."""
    if not args or not is_sharded(args[0]) or any_sharded([*args[1:], *kwargs.values()]):
        return NotImplemented
    me = args[0]
    if kwargs.get("out") is not None or (func.__name__ == "multinomial" and me.shard_dim):
        return NotImplemented
    me.spec.view.gathered(func.__name__, me.numel() * me.dtype.itemsize)
    whole = func(me.full(), *args[1:], **kwargs)
    if whole.dim() <= me.shard_dim or whole.shape[me.shard_dim] != me.sizes.total:
        return whole
    mine = part(whole, me.sizes, me.shard_dim)
    return ShardedTensor(mine if mine.requires_grad else mine.clone(), me.sizes, me.shard_dim)
