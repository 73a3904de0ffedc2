"""Everything about autoddp that only a machine with GPUs can tell, written to one markdown file.

    python -m tests.gpu [--out gpu.md] [--rounds 2] [--seconds 600] [--only right|fast] [--tiny]

It needs torch and this checkout, and no network. On one GPU two ranks share it by gloo. No part
begins after `--seconds`, nor a check after two thirds of them. The exit code is 1 if a part failed.
`--tiny` takes the smallest sizes, and goes without a GPU, to try the command itself.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from tests.gpu import checks, speed
from tests.gpu.machine import Machine, Trial
from tests.gpu.page import page


def main(argv: list[str] | None = None) -> int:
    """Run it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("gpu.md"))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--only", choices=["right", "fast"])
    parser.add_argument("--tiny", action="store_true")
    told = parser.parse_args(argv)
    machine = Machine.here()
    if not machine.gpus and not told.tiny:
        print("no GPU here; --tiny tries the command itself on the CPU", file=sys.stderr)
        return 2
    results, rows, table = [], [], ""
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(machine, told.tiny, Path(folder), time.monotonic() + told.seconds)
        if told.only != "fast":
            results += checks.all_of(replace(trial, until=trial.until - told.seconds / 3))
        if told.only != "right":
            rules, table = speed.rules(trial)
            results.append(rules)
            rows = speed.all_of(trial, told.rounds)
    told.out.write_text(page(machine, results, rows, told.tiny, table))
    print(f"written: {told.out}")
    return int(any(part.state == checks.FAILED for part in (*results, *rows)))


if __name__ == "__main__":
    sys.exit(main())
