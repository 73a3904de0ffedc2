"""steps/s of an unmodified script in the global view, against the same with hand-written DDP.

    python -m benchmarks.steps [--metrics] [--sharded] [--rounds 5] [--ranks 2] [mlp cnn norm lm]

Both run at the same global batch, with one thread in each rank, alternating, and so does one
process with one thread; each time in new processes, as a rank sets the C library's allocator.
Ratios are medians over rounds. With --metrics the script also reads an accuracy every step. With
--sharded, parameters are sharded, by hand with torch's FSDP2.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
import warnings
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from autoddp.allocator import keep_memory
from autoddp.options import Options
from autoddp.process.session import session
from autoddp.report import Report
from tests.support.ranks import run_ranks

STEPS = {"mlp": 300, "cnn": 40, "norm": 40, "lm": 30}
WARM = 5


class LanguageModel(nn.Module):
    def __init__(self, tokens=256, width=128):
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True)
        self.embed, self.body = nn.Embedding(tokens, width), nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(width, tokens)

    def forward(self, x):
        return self.head(self.body(self.embed(x)))


def convolved(into, out):
    """A layer as in every CNN."""
    return nn.Sequential(
        nn.Conv2d(into, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU()
    )


def make(kind):
    """The model, its data and the global batch size."""
    torch.manual_seed(0)
    if kind == "mlp":
        net = nn.Sequential(
            nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
        )
        return net, TensorDataset(torch.randn(6400, 64), torch.randint(10, (6400,))), 64
    if kind == "cnn":
        parts = [
            nn.Conv2d(3, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
        ]
        net = nn.Sequential(
            *parts, nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(1024, 10)
        )
        return net, TensorDataset(torch.randn(1280, 3, 32, 32), torch.randint(10, (1280,))), 64
    if kind == "norm":
        # by hand each rank normalizes by its own rows: torch's SyncBatchNorm needs a GPU
        parts = [
            convolved(3, 16),
            convolved(16, 16),
            nn.MaxPool2d(2),
            convolved(16, 32),
            convolved(32, 32),
        ]
        net = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, 10))
        return net, TensorDataset(torch.randn(1280, 3, 32, 32), torch.randint(10, (1280,))), 64
    return (
        LanguageModel(),
        TensorDataset(torch.randint(256, (256, 64)), torch.randint(256, (256, 64))),
        16,
    )


def train(net, loader, steps, metrics):
    """The script: steps/s after a few."""
    optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    done, hits, start = 0, 0, 0.0
    while done < steps:
        for x, y in loader:
            optimizer.zero_grad()
            out = net(x)
            loss = criterion(out.view(-1, out.size(-1)), y.view(-1))
            loss.backward()
            optimizer.step()
            if metrics:
                hits += (out.argmax(-1) == y).sum().item()
            done += 1
            if done == WARM:
                start = time.perf_counter()
            if done >= steps:
                break
    return (steps - WARM) / (time.perf_counter() - start)


def fully_sharded(net, group):
    """The model with its parameters sharded by hand: those of each child, then the rest."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    warnings.filterwarnings("ignore", "FSDP2-wrapped module")  # of a view that it returns
    dist.group.WORLD = group.pg
    mesh = DeviceMesh.from_group(group.pg, "cpu")
    for child in net.children():
        if any(True for _ in child.parameters()):
            fully_shard(child, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def measured(group, kind, way, metrics, sharded):
    """steps/s of one way, in processes that nothing else has run in."""
    net, data, batch = make(kind)
    if way == "alone":
        return train(net, DataLoader(data, batch, shuffle=True), STEPS[kind], metrics)
    if way == "by hand":
        sampler = DistributedSampler(data, group.size, group.rank)
        parallel = partial(DistributedDataParallel, process_group=group.pg)
        net = fully_sharded(net, group) if sharded else parallel(net)
        loader = DataLoader(data, batch // group.size, sampler=sampler)
        return train(net, loader, STEPS[kind], metrics)
    keep_memory(os.environ)
    options = Options(placement="sharded", parameters="sharded" if sharded else "auto")
    with session(group.world, options, group, Report()):
        return train(net, DataLoader(data, batch, shuffle=True), STEPS[kind], metrics)


def in_turn(kind, ranks, rounds, *more):
    """steps/s of (one process, by hand, unmodified) in each round."""
    ways = {"alone": 1, "by hand": ranks, "unmodified": ranks}
    return [
        [run_ranks(measured, n, kind, way, *more, timeout=900)[0] for way, n in ways.items()]
        for _ in range(rounds)
    ]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="*", default=[])
    parser.add_argument("--metrics", action="store_true")
    parser.add_argument("--sharded", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=2)
    args = parser.parse_args()
    for kind in args.kinds or STEPS:
        found = in_turn(kind, args.ranks, args.rounds, args.metrics, args.sharded)
        alone, hand, ours = (statistics.median(column) for column in zip(*found, strict=True))
        ratios = sorted(b / a for _, a, b in found)
        of_one = statistics.median(b / one for one, _, b in found)
        print(
            f"{kind}: by hand {hand:.1f} steps/s, unmodified {ours:.1f}, "
            f"ratio {statistics.median(ratios):.3f} [{ratios[0]:.2f} .. {ratios[-1]:.2f}]; "
            f"one process {alone:.1f}, unmodified over it {of_one:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
