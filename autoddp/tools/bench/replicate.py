"""`nn.DataParallel` for a script that does not use it: its outermost modules run on all GPUs."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import data_parallel

from autoddp import torch_internals


class ModuleReplicas:
    """The replication of what a script calls, at each call, as `nn.DataParallel` does it."""

    def __init__(self, kind: str, devices: list[int]) -> None:
        self.kind, self.devices, self.inside = kind, devices, False

    def call(self, plain: Any, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Replicate a module on a GPU that is called with tensors, not those that it calls."""
        first = next(module.parameters(), None)
        known = self.inside or isinstance(module, nn.DataParallel) or torch.compiler.is_compiling()
        there = first is not None and first.device.type == self.kind
        if known or not there or not any(isinstance(x, Tensor) for x in args):
            return plain(module, *args, **kwargs)
        self.inside = True
        try:
            return data_parallel(module, args, self.devices, module_kwargs=kwargs)
        finally:
            self.inside = False


def setup(undo: ExitStack) -> None:
    """Replicate modules from here on, on all GPUs that this process sees."""
    there = torch_internals.accelerator()
    devices = list(range(torch.accelerator.device_count()))
    replicas, plain = (
        ModuleReplicas(there.type if there is not None else "", devices),
        nn.Module.__call__,
    )

    def __call__(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return replicas.call(plain, module, args, kwargs)

    nn.Module.__call__ = __call__  # type: ignore[method-assign]
    undo.callback(setattr, nn.Module, "__call__", plain)
