"""Changes of a run for a comparison: faster clocks, float64, or last bits of gradients."""

from __future__ import annotations

import math
from contextlib import ExitStack
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._pytree import tree_map_only

from autoddp.patching import Feature, Installation, patch, stands_for
from autoddp.report import library_modules
from autoddp.tools.record.times import around

PACE = 100_000  # the factor, with which durations and rates differ from those of another run
FLOAT32 = torch.float32
# Functions that return tensors of the dtype of an argument or a file.
MAKERS = ("from_numpy", "as_tensor", "tensor", "frombuffer", "load")


def faster_clocks(undo: ExitStack) -> None:
    """Make clocks run faster, so that all texts that the script derives from them change.

    Otherwise two runs of one process might take the same time, to the digits that are printed.
    """
    undo.enter_context(Installation([FasterClocks()], libraries=library_modules))


class FasterClocks(Feature):
    """A feature for faster clocks; not the monotonic ones, by which Python waits."""

    name: ClassVar[str] = "faster clocks"
    libraries: ClassVar[bool] = True

    @patch(
        *("time:time", "time:time_ns", "time:perf_counter", "time:perf_counter_ns"),
        *("timeit:default_timer", "time:process_time", "time:process_time_ns"),
        why="texts that depend on a clock change",
        hot=True,
    )
    def read(self, original: Any) -> Any:
        """Make a clock that runs faster."""
        start = original()

        @stands_for(original)
        def read() -> Any:
            return start + PACE * (original() - start)

        return read


def last_bits(undo: ExitStack) -> None:
    """Change gradients as much as another order of sums does, before each step.

    A sum that cancels, as of a bias before a BatchNorm, is off by the last bit of its terms: these
    are about as large as the other gradients.
    """
    draw = torch.Generator().manual_seed(1)

    def change(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        given = [p.grad for group in optimizer.param_groups for p in group["params"]]
        dense = [x for x in given if x is not None and x.layout is torch.strided]
        norms = [x.detach().norm().item() for x in dense if x.numel()]
        size = math.hypot(*norms) / math.sqrt(max(1, sum(x.numel() for x in dense)))
        for x in dense:
            signs = torch.randint(0, 2, x.shape, generator=draw, device="cpu").to(x) * 2 - 1
            with torch.no_grad():
                x += signs * torch.finfo(x.dtype).eps * (x.abs() + size)

    undo.callback(register_optimizer_step_pre_hook(change).remove)


def float64(undo: ExitStack) -> None:
    """Make float64 the default, and replace float32 in `.float()`, arrays and files by it.

    Half precision and autocast are not changed.
    """
    for table in ("_dtype_to_storage_type_map", "_storage_type_to_dtype_map"):
        # torch caches these tables, which must be made before dtypes are replaced
        getattr(torch.storage, table)()
    undo.callback(torch.set_default_dtype, torch.get_default_dtype())
    torch.set_default_dtype(torch.float64)
    for owner, name, value in (
        (torch.Tensor, "float", torch.Tensor.double),
        (torch.nn.Module, "float", torch.nn.Module.double),
        (torch, "float32", torch.float64),
        (torch, "float", torch.float64),
        (torch, "FloatTensor", torch.DoubleTensor),
    ):
        undo.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, value)
    for name in MAKERS:
        around(undo, torch, name, _widened)


def _widened(make: Any, *args: Any, **kwargs: Any) -> Any:
    return tree_map_only(
        Tensor, lambda x: x.double() if x.dtype == FLOAT32 else x, make(*args, **kwargs)
    )
