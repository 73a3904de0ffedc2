"""The page that is written: what passed, how fast, in how much memory."""

from __future__ import annotations

from tests.gpu.checks import Result
from tests.gpu.machine import Machine
from tests.gpu.speed import KINDS, Row

NAMES = {
    "steps_per_s": "{:.1f}",
    "peak_mb": "{:.0f}",
    "first_step_s": "{:.1f}",
    "syncs_per_step": "{:.1f}",
}


OF_GPUS = ("peak_mb", "syncs_per_step")  # without one nothing was there to be counted
TINY = (
    "**Tried at its smallest sizes, whatever the rows below are called: "
    "no figure here means anything.**"
)


def page(
    machine: Machine, results: list[Result], rows: list[Row], version: str, tiny: bool = False
) -> str:
    """Markdown."""
    gpus = (
        ", ".join(sorted({f"{machine.gpus.count(name)} x {name}" for name in machine.gpus}))
        or "no GPU"
    )
    lines = [
        "# autoddp on this machine",
        "",
        f"autoddp {version}; {gpus}; torch {machine.torch}, CUDA {machine.cuda}, "
        f"NCCL {machine.nccl}; jobs of {machine.ranks} ranks.",
        "",
        *([TINY, ""] if tiny else []),
        "## Right",
        "",
        "Each script in one process and in ranks; "
        "the largest relative difference of what they print.",
        "",
        "| | result | seen | seconds |",
        "|---|---|---|---|",
        *(
            f"| {r.what} | {r.state} | {r.seen.replace('|', '/')} | {r.seconds:.1f} |"
            for r in results
        ),
        "",
        "## Fast",
        "",
        "Medians over rounds that alternate. `against`: steps/s of one rank as a part of "
        "plain python's, and of several as a part of hand-written DDP's.",
        "",
        "| | | steps/s | against | peak MB of rank 0 | "
        "s from launch to first step | host syncs a step |",
        "|---|---|---|---|---|---|---|",
        *(_line(row, bool(machine.gpus)) for row in rows),
    ]
    return "\n".join(lines) + "\n"


def _line(row: Row, on_gpus: bool) -> str:
    known = {name for name in row.figures if on_gpus or name not in OF_GPUS}
    told = [form.format(row.figures[name]) if name in known else "" for name, form in NAMES.items()]
    against = "" if row.against is None else f"{row.against:.2f}"
    if row.failed and not row.figures:
        return f"| {KINDS[row.kind]} | {row.way} | failed: {row.failed.replace('|', '/')} | | | | |"
    return (
        f"| {KINDS[row.kind]} | {row.way} | {told[0]} | {against} | "
        f"{told[1]} | {told[2]} | {told[3]} |"
    )
