"""Changes of a run that a comparison needs: the pace of the clocks, or float64."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from autoddp.patching import Feature, Installation, patch, stands_for
from autoddp.report import library_modules
from autoddp.tools.record.times import around

PACE = 100_000  # at which no duration or rate looks like that of another run
FLOAT32 = torch.float32
# Functions whose tensors have the type of their arguments, or of what a file holds.
MAKERS = ("from_numpy", "as_tensor", "tensor", "frombuffer", "load")


def other_pace(undo: ExitStack) -> None:
    """Make clocks run faster, so that all that the script prints or writes of them changes.

    At one pace, two runs of one process may take the same time, to the digits that are printed.
    """
    undo.enter_context(Installation([FasterClocks()], libraries=library_modules))


class FasterClocks(Feature):
    """Clocks that run faster from the start of the run; Python waits by the monotonic ones."""

    name: ClassVar[str] = "faster clocks"
    libraries: ClassVar[bool] = True

    @patch(
        *("time:time", "time:time_ns", "time:perf_counter", "time:perf_counter_ns"),
        *("timeit:default_timer", "time:process_time", "time:process_time_ns"),
        why="what is printed of a clock is another text at another pace",
        hot=True,
    )
    def read(self, original: Any) -> Any:
        """Make a clock that runs faster."""
        began = original()

        @stands_for(original)
        def read() -> Any:
            return began + PACE * (original() - began)

        return read


def float64(undo: ExitStack) -> None:
    """Make float64 the default, and have `float32`, `.float()`, arrays and files give float64.

    Half precision and autocast stay what they are.
    """
    for table in ("_dtype_to_storage_type_map", "_storage_type_to_dtype_map"):
        # torch caches these tables of checkpoints: make them while names mean the right types
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
