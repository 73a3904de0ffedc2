"""Recurrent layers and cells."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from autoddp.view.draws import DrawingCall
from autoddp.view.local_call import LocalCall, LocalRows
from autoddp.view.rules.operands import any_sharded
from autoddp.view.shard_sizes import ShardSizes
from autoddp.view.sharded_tensor import is_sharded
from autoddp.view.table import computed, rule


@computed(torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)
def recurrent(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute `lstm(input, hx, weights, bias, layers, dropout, train, both ways, batch_first)`.

    With batch sizes as second argument rows are sorted by length: that gathers.
    """
    if len(args) != 9 or kwargs or not is_sharded(args[0]) or isinstance(args[3], (list, tuple)):
        return NotImplemented
    me, hx, weights, _, layers, dropout, train, _, batch_first = args
    if me.dim() != 3 or me.shard_dim != (0 if batch_first else 1) or any_sharded(weights):
        return NotImplemented
    states = [hx] if isinstance(hx, Tensor) else list(hx)
    mine = [_rows(h, me.sizes, 1, 3) for h in states]
    if any(x is None for x in mine):
        return NotImplemented
    given = (me, mine[0] if isinstance(hx, Tensor) else type(hx)(mine), *args[2:])
    out = [me.placement, *[(1, me.sizes)] * len(states)]
    if not (dropout and train and layers > 1):
        return LocalCall(given, kwargs, out)
    if me.device.type != "cpu":
        return NotImplemented
    # between layers time comes first
    return DrawingCall(given, kwargs, out, drawn=(1, me.sizes))


@rule(torch.lstm_cell, torch.gru_cell, torch.rnn_tanh_cell, torch.rnn_relu_cell)
def cell(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute `lstm_cell(input, hx, weights and biases)`, one step of each row."""
    if len(args) < 4 or kwargs or any_sharded(args[2:]):
        return NotImplemented
    hx = args[1]
    states = [hx] if isinstance(hx, Tensor) else list(hx)
    lead = next((x for x in (args[0], *states) if is_sharded(x)), None)
    if lead is None or lead.dim() != 2 or lead.shard_dim != 0:
        return NotImplemented
    me, *mine = (_rows(x, lead.sizes, 0, 2) for x in (args[0], *states))
    if any(x is None for x in (me, *mine)):
        return NotImplemented
    given = (me, mine[0] if isinstance(hx, Tensor) else type(hx)(mine), *args[2:])
    return LocalCall(given, kwargs, lead.placement)


def _rows(x: Any, sizes: ShardSizes, dim: int, ndim: int) -> Any:
    """Return how an input or a state takes part that has the batch along `dim`; None if not."""
    if is_sharded(x):
        return x if x.placement == (dim, sizes) and x.dim() == ndim else None
    return LocalRows(dim) if x.dim() == ndim and x.shape[dim] == sizes.total else None
