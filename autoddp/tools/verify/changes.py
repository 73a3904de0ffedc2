"""What is changed for a run that a comparison takes: the order of sums, the clock, or float64."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime
from typing import Any

import torch

from autoddp.comm.context import Context
from autoddp.effects.clocks import Clocks
from autoddp.effects.engine import Mode
from autoddp.effects.ownership import users_call
from autoddp.patching import Installation

FLOAT32 = torch.float32
PACE = 3  # at which no duration or time of day looks like that of another run
EPOCH = datetime(1970, 1, 1)
# Torch's tables that checkpoints are written by.
TABLES = ("_dtype_to_storage_type_map", "_storage_type_to_dtype_map")
# Functions whose tensors have the type of what they are given.
MAKERS = ("from_numpy", "as_tensor", "tensor", "frombuffer")


def other_order(undo: ExitStack) -> None:
    """Sum over another number of threads, to see how far rounding alone carries a training."""
    torch.set_num_threads(1 if torch.get_num_threads() > 1 else 2)


def other_pace(undo: ExitStack) -> None:
    """Let the script's clocks run faster, to see which of what it prints or writes is of a clock.

    Two runs of one process may take the same time by chance, to the digits that are printed.
    """
    undo.enter_context(Installation([FasterClocks()]))


class FasterClocks(Clocks):
    """The script's clocks, which show `PACE` times what they are asked."""

    def __init__(self) -> None:
        self.effects = Pace()  # type: ignore[assignment]
        self.rank, self.context = 0, Context()

    def setup(self, undo: ExitStack) -> None:
        """Need no journal: there is one process."""


class Pace:
    """The source of all readings of a script, in place of the effects of a job."""

    def mode(self) -> Mode:
        """Answer each reading of the script's."""
        return Mode.SYNCED

    def users(self) -> Mode:
        """Leave the readings of libraries as they are."""
        return Mode.SYNCED if users_call(2) else Mode.PASS_THROUGH

    def ask_rank0(self, what: str, read: Callable[[], Any]) -> Any:
        """Return a reading, a list of readings, or a date by its fields, at the other pace."""
        found = read()
        if what != "now":
            return [PACE * part for part in found] if isinstance(found, list) else PACE * found
        at = EPOCH + PACE * (datetime(*found[:7]) - EPOCH)
        fields = at.year, at.month, at.day, at.hour, at.minute, at.second, at.microsecond
        return [*fields, found[7]]


def float64(undo: ExitStack) -> None:
    """Make float64 the default, and have `float32`, `.float()` and float32 arrays give float64.

    Half precision and autocast stay what they are.
    """
    for table in TABLES:
        # torch makes it once, of the types by their names: now, while the names mean the right ones
        getattr(torch.storage, table)()
    undo.callback(torch.set_default_dtype, torch.get_default_dtype())
    torch.set_default_dtype(torch.float64)
    _put(undo, torch.Tensor, "float", torch.Tensor.double)
    _put(undo, torch.nn.Module, "float", torch.nn.Module.double)
    for name in ("float32", "float"):
        _put(undo, torch, name, torch.float64)
    _put(undo, torch, "FloatTensor", torch.DoubleTensor)
    for name in MAKERS:
        _put(undo, torch, name, _widened(getattr(torch, name)))


def _widened(make: Any) -> Any:
    @functools.wraps(make)
    def made(*args: Any, **kwargs: Any) -> Any:
        found = make(*args, **kwargs)
        return found.double() if found.dtype == FLOAT32 else found

    return made


def _put(undo: ExitStack, owner: Any, name: str, value: Any) -> None:
    undo.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, value)
