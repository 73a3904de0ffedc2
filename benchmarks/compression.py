"""Compressed gradients next to plain ones: steps/s, bytes a rank hands to the backend, the loss.

    python -m benchmarks.compression [--rounds 3] [--steps 60]
        [plain fp16 bf16 powersgd:1 powersgd:4]

All run in the same ranks (2, one thread each), in turn, on the same batches; the ratio is the
median over rounds, the loss that of the last ten steps.
On one machine gloo's bytes cost next to nothing: the ratio shows what compressing costs, not what
it saves.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from autoddp.options import Options
from autoddp.process.session import session
from autoddp.report import Report
from autoddp.training import compression
from autoddp.training.compression import START
from tests.support.ranks import run_ranks

KINDS = ("plain", "fp16", "bf16", "powersgd:1", "powersgd:4")
WARM = START + 5


def digits():
    """Real handwritten digits."""
    data = load_digits()
    return TensorDataset(torch.tensor(data.data).float() / 16, torch.tensor(data.target))


def train(steps):
    """The script: steps/s after PowerSGD has begun, and the mean loss of the last ten steps."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    )
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    losses, start = [], 0.0
    while len(losses) < steps:
        for x, y in DataLoader(digits(), 64, shuffle=True):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
            if len(losses) == WARM:
                start = time.perf_counter()
            if len(losses) == steps:
                break
    seconds = time.perf_counter() - start
    return (steps - WARM) / seconds, sum(x.item() for x in losses[-10:]) / 10


class Counted:
    """The bytes that hooks hand to `all_reduce`."""

    def __init__(self):
        self.sent, self.plain = 0, dist.all_reduce

    def __enter__(self):
        dist.all_reduce = self.all_reduce
        return self

    def __exit__(self, *_):
        dist.all_reduce = self.plain

    def all_reduce(self, x, *args, **kwargs):
        self.sent += x.numel() * x.element_size()
        return self.plain(x, *args, **kwargs)


def each(group, kinds, rounds, steps):
    """By kind: (steps/s, loss) of every round, and bytes per step once it is under way."""
    found = {kind: [] for kind in kinds}
    for _ in range(rounds):
        for kind in kinds:
            with session(group.world, options_of(kind), group, Report()):
                found[kind].append(train(steps))
    return found, {kind: bytes_per_step(group, kind) for kind in kinds}


def bytes_per_step(group, kind):
    """Of ten steps once it is under way; plain buckets are seen by torch's own hook for them."""
    counts, register = [], compression.register
    if kind == "plain":
        compression.register = lambda reducer, pg, _: reducer.register_comm_hook(pg, allreduce_hook)
    for steps in (WARM + 1, WARM + 11):
        with Counted() as counted, session(group.world, options_of(kind), group, Report()):
            train(steps)
        counts.append(counted.sent)
    compression.register = register
    return (counts[1] - counts[0]) / 10


def options_of(kind):
    return Options(compress="none" if kind == "plain" else kind)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="*", default=[])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    kinds = ["plain", *(kind for kind in options.kinds or KINDS if kind != "plain")]
    found, sent = run_ranks(each, 2, kinds, options.rounds, options.steps, timeout=600)[0]
    for kind in kinds:
        ratios = [a / b for (a, _), (b, _) in zip(found[kind], found["plain"], strict=True)]
        rate = statistics.median(a for a, _ in found[kind])
        print(
            f"{kind}: {rate:.1f} steps/s, ratio {statistics.median(ratios):.2f} "
            f"[{min(ratios):.2f} .. {max(ratios):.2f}], {sent[kind] / 1e3:.1f} kB per step, "
            f"loss {found[kind][0][1]:.4f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
