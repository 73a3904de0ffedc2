"""How fast, in how much memory: one rank beside plain python, ranks beside DDP by hand, in turn."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.gpu.checks import FAILED, NOT_HERE, PASSED, Result
from tests.gpu.machine import Trial, by_hand, command, last, run

KINDS = {
    "resnet50": "ResNet-50, bfloat16, channels_last, batch 128",
    "gpt2": "GPT-2 small, bfloat16, batch 8 x 1024",
    "cifar": "ResNet-18 on 32 x 32, bfloat16, batch 256",
}
STEPS = {"resnet50": 40, "gpt2": 40, "cifar": 100}
FEW, SECONDS = 8, 90  # steps of a tiny run; the time that a run may take


@dataclass(frozen=True)
class Row:
    """Medians of a kind of model in one way of running it."""

    kind: str
    way: str
    figures: dict[str, float]
    against: float | None  # steps/s, as a part of those of the way it is measured against
    failed: str = ""
    state: str = PASSED


def all_of(trial: Trial, rounds: int) -> list[Row]:
    """Every kind in every way, rounds alternating, as many as fit into the time."""
    rows = []
    for kind in KINDS:
        ways = _ways(kind, trial.machine.ranks, trial.tiny)
        both = trial.tiny or len(trial.machine.gpus) > 1
        seen: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
        failed: dict[str, str] = {}
        for _ in range(rounds):
            for way, told in [*ways.items()][: None if both else 2]:
                if trial.late or way in failed:
                    continue
                figures = _one(told, trial)
                if isinstance(figures, str):
                    failed[way] = figures
                else:
                    seen[way].append(figures)
        rows += _rows(kind, seen, failed)
        for row in rows[-len(ways) :]:
            print(f"{kind} {row.way}: {row.failed or row.figures or row.state}", flush=True)
    return rows


def _ways(kind: str, ranks: int, tiny: bool) -> dict[str, list[str]]:
    args = "train", kind, str(FEW if tiny else STEPS[kind])
    return {
        "python": command(*args),
        "autoddp, 1 rank": command(*args, nproc=1),
        f"DDP by hand, {ranks} ranks": by_hand(*args, "ddp", nproc=ranks),
        f"autoddp, {ranks} ranks": command(*args, nproc=ranks),
    }


def _one(told: list[str], trial: Trial) -> dict[str, float] | str:
    done = run(told, trial, SECONDS)
    lines = [line for line in done.out.splitlines() if line.startswith("{")]
    if done.code != 0 or not lines:
        return f"exit code {done.code}: {last(done.err)}"
    said: dict[str, Any] = json.loads(lines[-1])
    said.pop("losses", None)
    return said


def _rows(
    kind: str, seen: dict[str, list[dict[str, float]]], failed: dict[str, str]
) -> Iterator[Row]:
    theirs: dict[str, float] = {}
    for number, (way, found) in enumerate(seen.items()):
        ours = {n: statistics.median(one[n] for one in found) for n in found[0]} if found else {}
        compared = ours and theirs and number % 2  # with the way before it
        ratio = ours["steps_per_s"] / theirs["steps_per_s"] if compared else None
        state = FAILED if way in failed else PASSED if ours else NOT_HERE
        yield Row(kind, way, ours, ratio, failed.get(way, ""), state)
        theirs = ours


def rules(trial: Trial) -> tuple[Result, str]:
    """What the rules cost on this device's tensors, with the table of `benchmarks.operators`."""
    what = "microseconds of a function on sharded tensors"
    if trial.late:
        return Result("rules", what, NOT_HERE, "no time was left"), ""
    few = ["--rounds", "1", "F.relu"] if trial.tiny else ["--rounds", "5", "--sessions", "1"]
    kind = trial.machine.kind or "cpu"
    told = [sys.executable, "-m", "benchmarks.operators", "--device", kind, *few]
    done = run(told, trial, 120)
    found = [line for line in done.out.splitlines() if line.startswith("median of")]
    state = PASSED if done.code == 0 and found else FAILED
    seen = found[0] if found else f"exit code {done.code}: {last(done.err)}"
    return Result("rules", what, state, seen, done.seconds), done.out
