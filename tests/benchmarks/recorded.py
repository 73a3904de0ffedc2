"""Commands of a warm parent that count what each rank computes, in a file that all of them map.

Counted are the input elements of modules without parts, at each call: of those in training, of those in
evaluation, and of either in a trial that proves a module row-wise. What a loader's worker or another
child of a rank computes is not the rank's.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.modules.module import register_module_forward_pre_hook

import autoddp
from autoddp.view import verdicts
from tests import warm

COUNTS = "AUTODDP_COUNTS"  # the variable that names the file
RANKS, KINDS = 8, ("training", "evaluation", "training tried", "evaluation tried")


def counts(path: str | Path, new: bool = False) -> np.memmap[Any, Any]:
    """The elements by rank and kind."""
    return np.memmap(path, np.int64, "w+" if new else "r+", shape=(RANKS, len(KINDS)))


class Recorder:
    """Adds up the calls of one process, and of the ranks forked from it."""

    def __init__(self, path: str) -> None:
        self.counts = counts(path)
        self.pids: dict[int, int] = {}  # of a rank: the process that counts for it
        self.tried = False

    def __call__(self, module: Any, args: Any) -> None:
        if module._modules or torch.jit.is_tracing() or torch.compiler.is_compiling():
            return
        given = next((x for x in args if isinstance(x, torch.Tensor)), None)
        rank = autoddp.rank()
        if given is None or self.pids.setdefault(rank, os.getpid()) != os.getpid():
            return
        trains = module.training and torch.is_grad_enabled()
        self.counts[rank, (not trains) + 2 * self.tried] += given.numel()

    def watch_proofs(self) -> None:
        """Tell what is computed in a trial from what one process computes, too."""
        prove = verdicts.prove

        def proving(*args: Any) -> Any:
            self.tried = True
            try:
                return prove(*args)
            finally:
                self.tried = False

        verdicts.prove = proving


if __name__ == "__main__":
    recorder = Recorder(os.environ[COUNTS])
    recorder.watch_proofs()
    register_module_forward_pre_hook(recorder)
    warm.serve()
