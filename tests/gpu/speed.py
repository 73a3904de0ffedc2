"""How fast, in how much memory: one rank beside plain python, ranks beside DDP by hand, in turn."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.gpu.machine import SCRIPTS, Machine, command, run

KINDS = {
    "resnet50": "ResNet-50, AMP, channels_last, batch 128",
    "gpt": "GPT, 110 M parameters, AMP, batch 16 x 512",
    "mlp": "MLP, 1 M parameters, batch 256",
}
STEPS = {"resnet50": 60, "gpt": 60, "mlp": 400}
FEW = 8


@dataclass(frozen=True)
class Row:
    """Medians of a kind of model in one way of running it."""

    kind: str
    way: str
    figures: dict[str, float]
    against: float | None  # steps/s, as a part of those of the way it is measured against
    failed: str = ""


def all_of(
    machine: Machine, tiny: bool, rounds: int, folder: Path, say: Callable[[str], None]
) -> list[Row]:
    """Every kind in every way, rounds alternating."""
    found = []
    for kind in KINDS:
        ways = _ways(kind, machine.ranks, tiny)
        seen: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
        failed: dict[str, str] = {}
        for _ in range(rounds):
            for way, told in ways.items():
                figures = _one(told, tiny, folder)
                if isinstance(figures, str):
                    failed[way] = figures
                else:
                    seen[way].append(figures)
        found += _rows(kind, seen, failed, machine.ranks)
        for row in found[-len(ways) :]:
            say(f"{kind} {row.way}: {row.failed or row.figures}")
    return found


def _ways(kind: str, ranks: int, tiny: bool) -> dict[str, list[str]]:
    steps = str(FEW if tiny else STEPS[kind])
    by_hand = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={ranks}",
    ]
    return {
        "python": command("train", kind, steps),
        "autoddp, 1 rank": command("train", kind, steps, nproc=1),
        f"DDP by hand, {ranks} ranks": [*by_hand, str(SCRIPTS / "by_hand.py"), kind, steps],
        f"autoddp, {ranks} ranks": command("train", kind, steps, nproc=ranks),
    }


def _one(told: list[str], tiny: bool, folder: Path) -> dict[str, float] | str:
    done = run(told, tiny, folder, 900)
    lines = [line for line in done.out.splitlines() if line.startswith("{")]
    if done.code != 0 or not lines:
        return f"exit code {done.code}: {(done.err.strip().splitlines() or ['nothing'])[-1][:160]}"
    said: dict[str, Any] = json.loads(lines[-1])
    said.pop("losses", None)
    return said


def _rows(
    kind: str, seen: dict[str, list[dict[str, float]]], failed: dict[str, str], ranks: int
) -> list[Row]:
    middle = {
        way: {name: statistics.median(one[name] for one in found) for name in found[0]}
        for way, found in seen.items()
        if found
    }
    beside = {
        "autoddp, 1 rank": "python",
        f"autoddp, {ranks} ranks": f"DDP by hand, {ranks} ranks",
    }
    rows = []
    for way in seen:
        ours, theirs = middle.get(way), middle.get(beside.get(way, ""))
        ratio = ours["steps_per_s"] / theirs["steps_per_s"] if ours and theirs else None
        rows.append(Row(kind, way, ours or {}, ratio, failed.get(way, "")))
    return rows
