"""Run a script as if its outermost modules were wrapped in `nn.DataParallel`."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import data_parallel


def setup(undo: ExitStack) -> None:
    """Replicate the outermost module at each call on GPUs."""
    gpus = list(range(torch.accelerator.device_count()))
    plain, inside = nn.Module.__call__, False

    def __call__(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        nonlocal inside
        first = next(module.parameters(), None)
        skip = inside or isinstance(module, nn.DataParallel) or torch.compiler.is_compiling()
        on_gpu = first is not None and first.device.type == "cuda"
        if skip or not on_gpu or not any(isinstance(x, Tensor) for x in args):
            return plain(module, *args, **kwargs)
        inside = True
        try:
            return data_parallel(module, args, gpus, module_kwargs=kwargs)
        finally:
            inside = False

    nn.Module.__call__ = __call__  # type: ignore[method-assign]
    undo.callback(setattr, nn.Module, "__call__", plain)
