"""The check that the ranks of a script with its own DDP have joined a process group."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_pre_hook

from autoddp.errors import BadInput


@contextmanager
def check_joined(line: str, size: int) -> Iterator[None]:
    """Raise BadInput at the first optimizer step inside, if the ranks share no process group.

    Args:
        line: Line of the script that makes the process group, for the message.
        size: Number of ranks; with one rank nothing is checked.
    """
    looked = size == 1

    def look(optimizer: Any, args: Any, kwargs: Any) -> None:
        nonlocal looked
        alone = not dist.is_initialized() or dist.get_world_size() == 1
        if not looked and alone:
            raise BadInput(
                f"init_process_group ({line}) was not called before the first step: each of "
                f"{size} processes would train by itself; give the script the arguments that "
                "it takes to be distributed, or --own-ddp no for the numbers of one process"
            )
        looked = True

    handle = register_optimizer_step_pre_hook(look)
    try:
        yield
    finally:
        handle.remove()
