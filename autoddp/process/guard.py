"""Checks for a script with its own DDP: it made no process group, or asked for missing devices."""

from __future__ import annotations

import re
import sys
from contextlib import ExitStack
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_pre_hook

from autoddp.errors import BadInput
from autoddp.process import devices
from autoddp.process.devices import Devices
from autoddp.report import Report

# words of an error that asks for a device
DEVICES = re.compile("nccl|cuda|gpu|nvidia", re.IGNORECASE)
# words of a driver's error about a device that is not there
LACKING = re.compile("invalid device|device (ordinal|index|id)")


class InitGuard(ExitStack):
    """A context whose first optimizer step raises BadInput if the ranks share no process group.

    Args:
        line: Line of the script that makes the process group, for the message.
        size: Number of ranks; with one rank nothing is checked.
    """

    def __init__(self, line: str, size: int) -> None:
        super().__init__()
        self.line, self.size, self.looked = line, size, False
        if size > 1:
            self.callback(register_optimizer_step_pre_hook(self._look).remove)

    def _look(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self.looked:
            return
        self.looked = True  # torch goes through its hooks now: none may leave until it is through
        if not dist.is_initialized() or dist.get_world_size() == 1:
            raise BadInput(
                f"init_process_group ({self.line}) was not called before the first step: each of "
                f"{self.size} processes would train by itself; give the script the arguments that "
                "it takes to be distributed, or --own-ddp no for the numbers of one process"
            )


def tell_devices(given: Devices, report: Report) -> None:
    """Say how many devices a rank sees, if its script has asked for one that is not there."""
    if LACKING.search(str(getattr(sys, "last_value", ""))):
        seen = devices.words(given.kind, torch.accelerator.device_count())
        report.say(f"this rank sees {seen}; --gpus-per-rank gives each rank several")
