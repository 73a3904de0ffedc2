"""How many targets of a batch a loss ignores, without asking the other ranks.

The mean of a cross-entropy is over targets that are not `ignore_index`, of which each rank sees its
rows: ranks would wait for each other in the middle of each step. Where the data set is in memory,
each rank looks at the whole batch's targets there, once a loss has asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import torch

from autoddp.comm.accelerator import CPU
from autoddp.torch_internals import no_dispatch, no_torch_function
from autoddp.training.loading.in_memory import located
from autoddp.view import ShardedTensor

MOST = 1 << 16  # elements of a batch's targets: to look at more may take longer than to wait


def note_ignored(batch: Sequence[Any], dataset: Any, indices: list[Any], value: int) -> None:
    """Note at tensors of integers how many of their elements are not `value`.

    Args:
        batch: Sharded tensors, one for each tensor of the data set.
        dataset: A `TensorDataset`, or a subset of one.
        indices: Those of the whole batch.
        value: The ignored one.
    """
    dataset, indices = located(dataset, indices)
    if not all(isinstance(k, Integral) for k in indices):
        return
    with no_torch_function(), no_dispatch():  # a mode of the script does not see it
        for x, every in zip(batch, dataset.tensors, strict=True):
            if type(x) is not ShardedTensor or every.dtype is not torch.long or x.numel() > MOST:
                continue
            # an accelerator would make the host wait; what inference mode makes counts no writes
            if every.is_cpu and not x.based.rows.is_inference():
                targets = every[torch.tensor(indices, device=CPU)]
                counted = int((targets != value).sum())
                x.based.counted = x.based.rows._version, value, counted
