"""Functions of layers: attention, normalization, recurrent layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # the field's name for it

from autoddp.view.batch_norm import Normalize, keep_layout
from autoddp.view.draws import DrawingCall
from autoddp.view.local_call import LocalCall
from autoddp.view.redistribute import with_mean_gradient
from autoddp.view.rules.operands import MISALIGNED, aligned, any_sharded, arguments
from autoddp.view.rules.rows import row_operand, with_arguments
from autoddp.view.sharded_tensor import ShardedTensor, is_sharded
from autoddp.view.table import rule, uncached_rule


@rule("scaled_dot_product_attention")
def attention(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute attention of each row; the dropout mask is drawn for the whole batch."""
    bound = arguments(func, args, kwargs)
    inputs: dict[str, Any] = {name: bound.get(name) for name in ("query", "key", "value")}
    lead = next(filter(is_sharded, inputs.values()), None)
    if lead is None or lead.shard_dim >= lead.dim() - (3 if bound["enable_gqa"] else 2):
        return NotImplemented
    local = {name: row_operand(x, lead) for name, x in inputs.items()}
    mask = bound["attn_mask"]
    if mask is not None:
        fits = mask.dim() <= lead.dim()
        dim, sizes = lead.placement
        local["attn_mask"] = aligned(mask, sizes, dim, lead.dim()) if fits else MISALIGNED
    if any(x is MISALIGNED for x in local.values()):
        return NotImplemented
    args, kwargs = with_arguments(bound, args, kwargs, local)
    if bound["dropout_p"]:
        return DrawingCall(args, kwargs, lead.placement, drawn=lead.placement)
    return LocalCall(args, kwargs, lead.placement)


@uncached_rule("multi_head_attention_forward", "gumbel_softmax")
def composite(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run the Python body of a composite function, whose parts have rules."""
    checks = ("has_torch_function", "has_torch_function_unary")
    originals = [getattr(F, name) for name in checks]
    for name in checks:
        setattr(F, name, lambda values: False)
    try:
        return func(*args, **kwargs)
    finally:
        for name, function in zip(checks, originals, strict=True):
            setattr(F, name, function)


@rule("batch_norm")
def batch_norm(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Normalize by statistics over all ranks, or by given ones.

    Statistics over all ranks are computed at each call; no decision is cached.
    """
    bound = arguments(func, args, kwargs)
    me = bound.pop("input", None)
    if (
        func is not F.batch_norm
        or not is_sharded(me)
        or me.shard_dim != 0
        or any_sharded(bound.values())
    ):
        return NotImplemented
    view = me.sizes.view
    if not bound["training"] and me.sizes.smallest > 1:
        return LocalCall(args, kwargs, me.placement)
    for name in ("weight", "bias"):  # may be computed from rows, as fast weights are
        bound[name] = with_mean_gradient(bound[name], view.group)
    if not bound["training"] or not view.batch_statistics:
        out = func(me.local, **bound)
        return ShardedTensor(keep_layout(me.local, out), me.sizes)
    if me.numel() == me.shape[1]:  # torch raises for a single value per channel
        func(torch.empty(me.shape, device="meta"), None, None, training=True)
    running = (bound["running_mean"], bound["running_var"], bound["momentum"])
    options = (bound["weight"], bound["bias"], running, bound["eps"], view.group)
    return ShardedTensor(Normalize.apply(me.local, *options), me.sizes)


@rule("instance_norm")
def instance_norm(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Normalize each row by itself; gather to update running statistics, which mix rows."""
    bound = arguments(func, args, kwargs)
    me = bound.pop("input", None)
    if func is not F.instance_norm or not is_sharded(me) or me.shard_dim != 0:
        return NotImplemented
    updates = bound["running_mean"] is not None and bound["use_input_stats"]
    if any_sharded(bound.values()) or updates:
        return NotImplemented
    return LocalCall(args, kwargs, me.placement)


@uncached_rule(torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)
def recurrent(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute `lstm(input, hx, weights, bias, layers, dropout, train, bidirectional, batch_first)`.

    Gather the variant with batch sizes as second argument: its rows are sorted by length.
    """
    if len(args) != 9 or kwargs or not is_sharded(args[0]) or isinstance(args[3], (list, tuple)):
        return NotImplemented
    me, hx, weights, _, layers, dropout, train, _, batch_first = args
    if me.dim() != 3 or me.shard_dim != (0 if batch_first else 1) or any_sharded(weights):
        return NotImplemented
    states = [hx] if isinstance(hx, Tensor) else list(hx)
    local = [aligned(h, me.sizes, 1, 3) for h in states]
    if any(x is MISALIGNED for x in local):
        return NotImplemented
    new_args = (me, local[0] if isinstance(hx, Tensor) else type(hx)(local), *args[2:])
    out = [me.placement, *[(1, me.sizes)] * len(states)]
    if not (dropout and train and layers > 1):
        return LocalCall(new_args, kwargs, out, reorders=True)
    if me.device.type != "cpu":
        return NotImplemented
    # between layers the first dimension is time
    return DrawingCall(new_args, kwargs, out, reorders=True, drawn=(1, me.sizes))


@rule(torch.lstm_cell, torch.gru_cell, torch.rnn_tanh_cell, torch.rnn_relu_cell)
def cell(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute `lstm_cell(input, hx, *weights)`, one step of each row."""
    if len(args) < 4 or kwargs or any_sharded(args[2:]):
        return NotImplemented
    hx = args[1]
    states = [hx] if isinstance(hx, Tensor) else list(hx)
    lead = next((x for x in (args[0], *states) if is_sharded(x)), None)
    if lead is None or lead.dim() != 2 or lead.shard_dim != 0:
        return NotImplemented
    me, *local = (aligned(x, lead.sizes, 0, 2) for x in (args[0], *states))
    if any(x is MISALIGNED for x in (me, *local)):
        return NotImplemented
    new_args = (me, local[0] if isinstance(hx, Tensor) else type(hx)(local), *args[2:])
    return LocalCall(new_args, kwargs, lead.placement)
