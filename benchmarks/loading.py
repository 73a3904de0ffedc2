"""Loaders that cannot be fetched by rows: loaded once on a node, beside DDP by hand, one process.

    python -m benchmarks.loading [--ranks 2] [--workers 0,2,4] [--batches 30] [--rounds 3]

Each job only loads and sums: rounds alternate between one process, DDP by hand (each rank its own
rows, its own draws) and ranks with --loading auto and each. It prints samples/s, processor time per
sample over all processes and its ratio to that of one process in the same round, and whether each
rank's rows are those of one process, bit for bit.

Measured is one whole pass, its worker processes from their start to their end among it. A pass that
is left after `WARM` batches goes before, alike for all ways: what a process pays once (torch's
first calls; of a job its connections, its look at the first batch) is no share of a sample's time,
since it would be the larger the fewer batches are measured. It is printed beside, as milliseconds
of all processes.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import os
import resource
import statistics
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

from autoddp.options import Options
from autoddp.process.session import session
from autoddp.report import Report
from autoddp.view import full
from tests.support.ranks import run_ranks

BATCH, WARM = 32, 3


class Images(Dataset):
    """A random crop and a flip, about a millisecond of work."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        x = torch.full((3, 64, 64), float(i))
        top, left = torch.randint(0, 16, (2,)).tolist()
        x = x[:, top : top + 48, left : left + 48] + torch.randn(3, 48, 48)
        x = torch.nn.functional.interpolate(x[None], 160, mode="bilinear")[0]
        return (x.flip(2) if torch.rand(1) < 0.5 else x), i % 10


class Stream(IterableDataset):
    """The same, one after the other."""

    def __init__(self, count: int) -> None:
        self.images = Images(count)

    def __iter__(self) -> Any:
        info = torch.utils.data.get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        return (self.images[i] for i in range(first, self.images.count, step))


class Sentences(Dataset):
    """Strings, for a collate function of its own."""

    def __init__(self, count: int) -> None:
        self.texts = [" ".join(f"word{(i * j) % 997}" for j in range(400)) for i in range(count)]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, i: int) -> tuple[str, int]:
        return self.texts[i], i % 2


def to_ids(samples: list[tuple[str, int]]) -> tuple[Tensor, Tensor]:
    """Each word's number."""
    ids = [[int(word[4:]) for word in text.split()] for text, _ in samples]
    return torch.tensor(ids), torch.tensor([y for _, y in samples])


def loader(kind: str, workers: int, count: int, by_hand: bool, ranks: int, rank: int) -> Any:
    """The script's; by hand with a DistributedSampler and a rank's share of the batch."""
    data: Any = {"images": Images, "stream": Stream, "strings": Sentences}[kind](count)
    given: dict[str, Any] = {
        "num_workers": workers,
        "collate_fn": to_ids if kind == "strings" else None,
    }
    if not by_hand:
        return DataLoader(data, BATCH, shuffle=kind != "stream" or None, **given)
    if kind == "stream":
        data.images.count = count // ranks
        return DataLoader(data, BATCH // ranks, **given)
    return DataLoader(data, BATCH // ranks, sampler=DistributedSampler(data, ranks, rank), **given)


def work(group: Any, way: str, kind: str, workers: int, count: int) -> Any:
    """Seconds, processor seconds, those of the pass before, a digest of each job rank's rows."""
    ranks, rank = group.size, group.rank
    torch.set_num_threads(1)
    torch.manual_seed(0)
    made = loader(kind, workers, count, way == "by hand", ranks, rank)
    job = int(os.environ["BENCH_RANKS"])
    if way in ("by hand", "one process"):
        return measured(group, made, job, (0, 1))  # a batch is this rank's, all of it
    with session(group.world, Options(placement="sharded", loading=way), group, Report()):
        return measured(group, made, job, (rank, ranks))


def measured(group: Any, made: Any, ranks: int, part: tuple[int, int]) -> Any:
    """One pass, after one that is left soon."""
    used = processors()
    consumed(itertools.islice(made, WARM), part, [])
    group.pg.barrier().wait()
    began, warm = time.perf_counter(), processors()
    digests = [hashlib.sha256() for _ in range(ranks)] if os.environ.get("BENCH_EXACT") else []
    consumed(made, part, digests)
    seconds = time.perf_counter() - began
    group.pg.barrier().wait()
    return seconds, processors() - warm, warm - used, [digest.hexdigest() for digest in digests]


def consumed(batches: Any, part: tuple[int, int], digests: list[Any]) -> None:
    """Each rank sums its rows of every batch: this part of so many."""
    number, parts = part
    for x, _ in batches:
        local = getattr(x, "local", None)
        if local is None:
            local = x[len(x) * number // parts : len(x) * (number + 1) // parts]
        local.sum().item()
        for rank, digest in enumerate(digests):
            rows = slice(len(x) * rank // len(digests), len(x) * (rank + 1) // len(digests))
            digest.update(full(x)[rows].contiguous().numpy())


def processors() -> float:
    """Seconds of this process, and of those that it started and that have ended."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(u.ru_utime + u.ru_stime for u in map(resource.getrusage, kinds))


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--workers", default="0,2,4")
    parser.add_argument("--batches", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kinds", default="images,strings,stream")
    args = parser.parse_args()
    os.environ["BENCH_RANKS"] = str(args.ranks)
    count = BATCH * args.batches
    ways = {"one process": 1, "by hand": args.ranks, "auto": args.ranks, "each": args.ranks}
    for kind in args.kinds.split(","):
        for workers in map(int, args.workers.split(",")):
            found: dict[str, list[Any]] = {way: [] for way in ways}
            for _ in range(args.rounds):
                for way, ranks in ways.items():
                    found[way].append(run_ranks(work, ranks, way, kind, workers, count))
            os.environ["BENCH_EXACT"] = "1"
            same = [
                run_ranks(work, ways[way], way, kind, workers, count)
                for way in ("one process", "auto")
            ]
            del os.environ["BENCH_EXACT"]
            exact = all(seen[3] == same[0][0][3] for seen in same[1])
            print(
                f"{kind}, {workers} workers, {args.ranks} ranks; auto is exact: {exact}",
                flush=True,
            )
            show(found, count)


def show(found: dict[str, list[Any]], count: int) -> None:
    """A line for every way: medians over the rounds, ratios within each."""
    costs = {way: [1e3 * sum(r[1] for r in ranks) / count for ranks in found[way]] for way in found}
    for way, rounds in found.items():
        rate = statistics.median(count / max(r[0] for r in ranks) for ranks in rounds)
        start = statistics.median(1e3 * sum(r[2] for r in ranks) for ranks in rounds)
        ratio = statistics.median(
            a / b for a, b in zip(costs[way], costs["one process"], strict=True)
        )
        cost = statistics.median(costs[way])
        said = f"{rate:7.0f} samples/s, {cost:6.3f} ms a sample, {ratio:5.2f}; start {start:.0f} ms"
        print(f"  {way:>12}: {said}")


if __name__ == "__main__":
    dist.is_available()
    main()
