"""Gradients that travel in fewer bytes: torch's own communication hooks, by `--compress`.

What a reducer covers is compressed, in both views: the dense gradients of a plain `backward()`. Sparse and
complex ones, those of `backward(inputs=...)`, of a backward that is differentiated again or recomputes by
a reentrant checkpoint, and those that hooks of the script look at are averaged by themselves, and exact.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from autoddp.report import Report

START = 10  # backwards of a reducer that are averaged whole before PowerSGD begins, as in torch's example
SMALL = 1e-8  # added to the length of a column, which is 0 where a gradient is: torch would divide by it

WORDS = {
    "fp16": "gradients travel in 16 bits, of a range up to 65504",
    "bf16": "gradients travel in 16 bits, 8 of them digits",
    "powersgd": f"gradients travel as matrices of rank %s, after {START} steps in which they are exact",
}


def announce(report: Report, compress: str) -> None:
    """Say at the start that numbers are not those of one process, if they are not."""
    kind, _, rank = compress.partition(":")
    if kind != "none":
        text = WORDS[kind].replace("%s", rank or "1")
        report.say_once("compression", f"--compress {compress}", f"{text}; numbers are not one process's")


def register(reducer: DistributedDataParallel, group: Any, compress: str) -> None:
    """Have a reducer send what the option says; `group` is the process group that it reduces over."""
    kind, _, rank = compress.partition(":")
    if kind == "fp16":
        reducer.register_comm_hook(group, default_hooks.fp16_compress_hook)
    elif kind == "bf16":
        reducer.register_comm_hook(group, in_bf16)
    elif kind == "powersgd":
        state = powerSGD_hook.PowerSGDState(
            group, int(rank or 1), start_powerSGD_iter=START, orthogonalization_epsilon=SMALL
        )
        reducer.register_comm_hook(state, in_turn if dist.get_backend(group) == "gloo" else in_low_rank)


in_low_rank = powerSGD_hook.powerSGD_hook


def in_turn(state: Any, bucket: GradBucket) -> Future[torch.Tensor]:
    """PowerSGD's three collectives of one bucket before those of the next.

    Gloo's threads would start them in an order of their own, another one on each rank.
    """
    future: Future[torch.Tensor] = in_low_rank(state, bucket)
    future.wait()
    return future


def in_bf16(group: Any, bucket: GradBucket) -> Future[torch.Tensor]:
    """The hook of torch: by its name torch would refuse it without NCCL, but gloo can do it, too."""
    return default_hooks.bf16_compress_hook(group, bucket)
