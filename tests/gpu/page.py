"""The page that is written: what passed, how fast, in how much memory."""

from __future__ import annotations

from autoddp import __version__
from tests.gpu.checks import Result
from tests.gpu.machine import Machine
from tests.gpu.speed import KINDS, Row

NAMES = {
    "steps_per_s": "{:.1f}",
    "peak_mb": "{:.0f}",
    "first_step_s": "{:.1f}",
    "waits_per_step": "{:.1f}",
}
TINY = (
    "**Tried at its smallest sizes, whatever the rows below are called: "
    "no figure here means anything.**"
)


def page(machine: Machine, results: list[Result], rows: list[Row], tiny: bool, rules: str) -> str:
    """Markdown."""
    names = sorted({f"{machine.gpus.count(name)} x {name}" for name in machine.gpus})
    lines = [
        "# autoddp on this machine",
        "",
        f"autoddp {__version__}; {', '.join(names) or 'no GPU'}; torch {machine.torch}, "
        f"CUDA {machine.cuda}, NCCL {machine.nccl}; jobs of {machine.ranks} ranks.",
        "",
        *([TINY, ""] if tiny else []),
        "## Right",
        "",
        "Each script in one process and in ranks; "
        "the largest relative difference of what they print and of all weights.",
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
        "s from launch to first step | the host waits, in a step |",
        "|---|---|---|---|---|---|---|",
        *map(_line, rows),
        *(["", "## Rules", "", rules.strip()] if rules else []),
    ]
    return "\n".join(lines) + "\n"


def _line(row: Row) -> str:
    forms = NAMES.items()
    shown = [form.format(row.figures[n]) if n in row.figures else "" for n, form in forms]
    against = "" if row.against is None else f"{row.against:.2f}"
    if not row.figures:
        said = f"{row.state}: {row.failed}" if row.failed else row.state
        return f"| {KINDS[row.kind]} | {row.way} | {said.replace('|', '/')} | | | | |"
    return f"| {KINDS[row.kind]} | {row.way} | {shown[0]} | {against} | {' | '.join(shown[1:])} |"
