"""steps/s of a script that accumulates gradients, against DDP by hand with and without `no_sync`.

    python -m benchmarks.accumulation [--micro 4] [--rounds 5] [mlp cnn norm lm]

All three run in the same ranks (2, one thread each), at the same global batch, in turn; a step is
an optimizer's, of some micro-batches. The ratios are medians over rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from contextlib import nullcontext

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from autoddp.options import Options
from autoddp.process.session import session
from autoddp.report import Report
from benchmarks.steps import STEPS, make
from tests.support.ranks import run_ranks

WARM = 3


def train(net, loader, steps, micro, quiet=nullcontext):
    """The script: steps/s after a few; `quiet` is around all backwards but a step's last."""
    optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    done, start = 0, 0.0
    while done < steps:
        for at, (x, y) in enumerate(loader, 1):
            last = at % micro == 0
            with nullcontext() if last else quiet():
                out = net(x)
                (criterion(out.view(-1, out.size(-1)), y.view(-1)) / micro).backward()
            if not last:
                continue
            optimizer.step()
            optimizer.zero_grad()
            done += 1
            if done == WARM:
                start = time.perf_counter()
            if done >= steps:
                break
        optimizer.zero_grad()
    return (steps - WARM) / (time.perf_counter() - start)


def all_three(group, kind, rounds, micro):
    """By hand, by hand with `no_sync`, and unmodified, in turn."""
    found, steps = [], max(2 * WARM, STEPS[kind] // micro)
    for _ in range(rounds):
        speeds = []
        for quiet in (False, True):
            net, data, batch = make(kind)
            sampler = DistributedSampler(data, group.size, group.rank)
            by_hand = DistributedDataParallel(net, process_group=group.pg)
            loader = DataLoader(data, batch // group.size, sampler=sampler)
            around = by_hand.no_sync if quiet else nullcontext
            speeds.append(train(by_hand, loader, steps, micro, around))
        net, data, batch = make(kind)
        with session(group.world, Options(), group, Report()):
            loader = DataLoader(data, batch, shuffle=True)
            speeds.append(train(net, loader, steps, micro))
        found.append(speeds)
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="*", default=[])
    parser.add_argument("--micro", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    for kind in options.kinds or STEPS:
        speeds = run_ranks(all_three, 2, kind, options.rounds, options.micro, timeout=600)[0]
        hand, quiet, ours = (statistics.median(column) for column in zip(*speeds, strict=True))
        to_hand, to_quiet = (statistics.median(row[2] / row[at] for row in speeds) for at in (0, 1))
        print(
            f"{kind}: by hand {hand:.1f} steps/s, with no_sync {quiet:.1f}, unmodified {ours:.1f}: "
            f"ratio {to_hand:.3f}, to no_sync {to_quiet:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
