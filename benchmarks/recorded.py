"""Commands of a warm parent that count what each rank computes, in a file that all of them map.

Counted are the input elements of modules without parts, at each call: of those in training, and of
those in evaluation. Of a sharded tensor it is this rank's rows, if what comes back is sharded or
partial as well. What a loader's worker or another child of a rank computes is not the rank's.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.modules.module import register_module_forward_hook
from torch.utils._pytree import tree_leaves

import autoddp
from autoddp.view import Partial, ShardedTensor, is_sharded
from tests.support import warm

COUNTS = "AUTODDP_COUNTS"  # the variable that names the file
RANKS, KINDS = 8, ("training", "evaluation")


def counts(path: str | Path, new: bool = False) -> np.memmap[Any, Any]:
    """The elements by rank and kind, and last the process that counts for the rank."""
    return np.memmap(path, np.int64, "w+" if new else "r+", shape=(RANKS, len(KINDS) + 1))


class Recorder:
    """Adds up the calls of one process, and of the ranks forked from it."""

    def __init__(self, path: str) -> None:
        self.counts = counts(path)

    def __call__(self, module: Any, args: Any, out: Any) -> None:
        if module._modules or torch.jit.is_tracing() or torch.compiler.is_compiling():
            return
        given = next((x for x in args if isinstance(x, torch.Tensor)), None)
        if given is None or torch.utils.data.get_worker_info() is not None:
            return
        mine = self.counts[autoddp.rank()]
        if mine[-1] == 0:
            mine[-1] = os.getpid()
        if mine[-1] == os.getpid():
            trains = module.training and torch.is_grad_enabled()
            by_rows = is_sharded(given) and any(
                isinstance(x, (ShardedTensor, Partial)) for x in tree_leaves(out)
            )
            mine[int(not trains)] += (given.local if by_rows else given).numel()


if __name__ == "__main__":
    register_module_forward_hook(Recorder(os.environ[COUNTS]))
    warm.serve()
