"""Gradients that travel in fewer bytes: torch's own communication hooks, by `--compress`.

In both views, only gradients that a reducer covers are compressed: the dense ones of a plain
`backward()`. Sparse and complex ones and those of `backward(inputs=...)` are averaged by themselves
and exact; in the global view, so are those of a backward that is differentiated again or recomputes
by a reentrant checkpoint, and those that hooks of the script look at.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from autoddp.report import Report

# Backwards of a reducer that are averaged whole before PowerSGD begins, as in torch's example.
START = 10
# Added to the length of a column, which is 0 where a gradient is: torch would divide by it.
SMALL = 1e-8

WORDS = {
    "fp16": "gradients travel in 16 bits, of a range up to 65504",
    "bf16": "gradients travel in 16 bits, 8 of them digits",
    "powersgd": (
        f"gradients travel as matrices of rank %s, after {START} steps in which they are exact"
    ),
}


def announce(report: Report, compress: str) -> None:
    """Say at the start, if gradients are compressed, that numbers are not those of one process."""
    kind, _, rank = compress.partition(":")
    if kind != "none":
        text = WORDS[kind].replace("%s", rank or "1")
        report.say_once(
            "compression", f"--compress {compress}", f"{text}; numbers are not one process's"
        )


def register(reducer: DistributedDataParallel, group: Any, compress: str) -> None:
    """Register the option's hook on a reducer; `group` is the process group it reduces over."""
    kind, _, rank = compress.partition(":")
    if kind == "fp16":
        reducer.register_comm_hook(group, default_hooks.fp16_compress_hook)
    elif kind == "bf16":
        reducer.register_comm_hook(group, in_bf16)
    elif kind == "powersgd":
        state = powerSGD_hook.PowerSGDState(
            group, int(rank or 1), start_powerSGD_iter=START, orthogonalization_epsilon=SMALL
        )
        reducer.register_comm_hook(
            state, in_turn if dist.get_backend(group) == "gloo" else in_low_rank
        )


in_low_rank = powerSGD_hook.powerSGD_hook


def in_turn(state: Any, bucket: GradBucket) -> Future[torch.Tensor]:
    """Run PowerSGD's three collectives of one bucket before those of the next.

    Gloo's threads would start them in an order of their own, another one on each rank.
    """
    future: Future[torch.Tensor] = in_low_rank(state, bucket)
    future.wait()
    return future


def in_bf16(group: Any, bucket: GradBucket) -> Future[torch.Tensor]:
    """Run torch's hook, which torch refuses by its name without NCCL, though gloo can do it."""
    return default_hooks.bf16_compress_hook(group, bucket)
