"""Ranks that were launched for a script's own DDP shall not each train the whole by themselves."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_pre_hook

from autoddp.errors import BadInput


class Guard(ExitStack):
    """Inside, the first optimizer step of one of several ranks finds them in one process group."""

    def __init__(self, line: str, size: int) -> None:
        super().__init__()
        self.line, self.size = line, size
        if size > 1:
            self.callback(register_optimizer_step_pre_hook(self._look).remove)

    def _look(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.close()
        if not dist.is_initialized() or dist.get_world_size() == 1:
            raise BadInput(
                f"init_process_group ({self.line}) was not called before the first step: each of {self.size} "
                "processes would train by itself; give the script the arguments that it takes to be "
                "distributed, or --own-ddp no for the numbers of one process"
            )
