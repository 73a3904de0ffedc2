"""Memory and speed of a transformer whose parameters are sharded, against FSDP2 by hand.

    python -m benchmarks.memory [--ranks 1 2 4] [--rounds 1] [--width 768] [--layers 12]

Prints what one rank holds with AdamW, in megabytes of resident memory above that of a process that
has imported torch: at rest after a step, and at the peak of the steps. `python` is one process,
`replicated` is autoddp without sharding. Seconds are those of a step, medians over rounds.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from autoddp.options import Options
from autoddp.process.session import session
from autoddp.report import Report
from tests.support.ranks import run_ranks

STEPS, ROWS, LENGTH, TOKENS = 4, 8, 64, 8192
WAYS = ("python", "replicated", "sharded", "FSDP2 by hand")


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.more = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, width // 64, batch_first=True)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        h = self.norm(x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        return x + self.narrow(F.gelu(self.wide(self.more(x))))


class LanguageModel(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.embed = nn.Embedding(TOKENS, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(layers)])
        self.head = nn.Linear(width, TOKENS, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def status(name):
    """A row of this process's memory, in bytes."""
    rows = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(rows[name].split()[0]) << 10


def settle():
    """Give freed memory back to the system."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def train(model, rows, shard=None):
    """Seconds of a step, megabytes at rest and at the peak, and the last loss."""
    if shard:
        shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    generator = torch.Generator().manual_seed(1)
    times = []
    for step in range(STEPS):
        batch = torch.randint(TOKENS, (ROWS, LENGTH + 1), generator=generator)[rows]
        if step == 1:  # the first one makes the optimizer's states
            settle()
            Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
        start = time.perf_counter()
        loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        last = loss.item()
        times.append(time.perf_counter() - start)
    peak = status("VmHWM")
    settle()
    return statistics.median(times[1:]), status("VmRSS"), peak, last


def by_hand(group):
    """The sharding that a script does by itself: each block, then the rest."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    def shard(model):
        dist.group.WORLD = group.pg
        mesh = DeviceMesh.from_group(group.pg, "cpu")
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)

    return shard


def measured(group, way, width, layers):
    """What `train` returns, in processes that nothing else has run in; memory above the start."""
    settle()
    before = status("VmRSS")
    torch.manual_seed(0)
    model = LanguageModel(width, layers)
    count = sum(p.numel() for p in model.parameters())
    if way == "python":
        found = train(model, slice(None))
    elif way == "FSDP2 by hand":
        each = ROWS // group.size
        rows = slice(group.rank * each, (group.rank + 1) * each)
        found = train(model, rows, by_hand(group))
    else:
        options = Options(parameters=way)
        with session(group.world, options, group, Report()):
            found = train(model, slice(None))
    seconds, rest, peak, loss = found
    return seconds, (rest - before) / 1e6, (peak - before) / 1e6, loss, count


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--layers", type=int, default=12)
    args = parser.parse_args()
    os.environ |= {"MALLOC_MMAP_THRESHOLD_": "100000", "MALLOC_TRIM_THRESHOLD_": "100000"}
    print(
        "| ranks | way | MB at rest | MB at the peak | s a step | last loss |\n"
        "|---|---|---|---|---|---|"
    )
    for ranks in args.ranks:
        for way in WAYS[:1] if ranks == 1 else WAYS[1:]:
            rounds = [
                run_ranks(measured, ranks, way, args.width, args.layers, timeout=900)[0]
                for _ in range(args.rounds)
            ]
            middle = [statistics.median(column) for column in zip(*rounds, strict=True)]
            seconds, rest, peak, loss, count = middle
            print(
                f"| {ranks} | {way} | {rest:.0f} | {peak:.0f} | {seconds:.2f} | {loss:.4f} |",
                flush=True,
            )
    print(f"\n{count / 1e6:.1f} million parameters, float32")


if __name__ == "__main__":
    main()
