"""How many rows BatchNorm would be given if a call saw the whole batch.

A module that cuts large batches into pieces, each with statistics of its own, may leave a rank's rows in
one piece: what it does with all of them is to be asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_unflatten

if TYPE_CHECKING:
    from autoddp.view.proof import Trial


def normalized_of_all(trial: Trial) -> list[int]:
    """The first size of what BatchNorm is given, at each of its calls.

    On this rank's rows, repeated: shapes alone would do, but torch's fake tensors start the threads of its
    engine, and no process that is forked afterwards can call backward() any more.
    """
    rows = torch.arange(trial.total) % trial.size
    return _sizes(trial, [_repeated(x, at, rows) for x, at in _pairs(trial)])


def _pairs(trial: Trial) -> list[tuple[Any, int | None]]:
    return list(zip(trial.leaves, trial.ats, strict=True))


def _sizes(trial: Trial, leaves: list[Any]) -> list[int]:
    trial.before.put_back()
    trial.view.normalized = []
    args, kwargs = tree_unflatten(leaves, trial.spec)
    trial.run(*args, **kwargs)
    return [len(x) for x in trial.view.normalized]


def _repeated(x: Any, at: int | None, rows: Tensor) -> Any:
    if at is None:
        return x.detach().requires_grad_(x.requires_grad) if isinstance(x, Tensor) else x
    return x.detach().index_select(at, rows.to(x.device)).requires_grad_(x.requires_grad)
