"""The sizes that BatchNorm would be given if a call saw the whole batch.

A module that cuts large batches into pieces, each with statistics of its own, may leave a rank's
rows in one piece: what it does with all of them is to be asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from autoddp.torch_internals import DispatchMode

if TYPE_CHECKING:
    from autoddp.view.proof.trial import Trial


def normalized_of_all(trial: Trial) -> list[int]:
    """Return the first size of what BatchNorm is given, at each of its calls.

    The call is given this rank's rows, repeated to the size of the batch. Shapes alone would do,
    but torch's fake tensors start the threads of its engine, and no process that is forked
    afterwards can call backward() any more. As many rows as all ranks have together fit on one
    device without what backward would need.

    Raises:
        torch.OutOfMemoryError: The rows do not fit.
    """
    try:
        with torch.no_grad():
            return _sizes(trial)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:  # a forward that takes gradients itself
        return _sizes(trial)


def _sizes(trial: Trial) -> list[int]:
    rows, sizes = torch.arange(trial.given.cuts.total, device="cpu") % trial.size, list[int]()
    trial.before.put_back()
    trial.view.noted = lambda x: sizes.append(len(x))
    with Eager(), trial.called([_repeated(x, at, rows) for x, at in trial.pairs]):
        return sizes


class Eager(DispatchMode):
    """A mode under which nothing is compiled: compiled code tells nobody what it normalizes."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def _repeated(x: Any, at: int | None, rows: Tensor) -> Any:
    if at is None:
        return x.detach().requires_grad_(x.requires_grad) if isinstance(x, Tensor) else x
    return x.detach().index_select(at, rows.to(x.device)).requires_grad_(x.requires_grad)
