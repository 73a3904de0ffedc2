"""Everything about autoddp that only a machine with GPUs can tell, written to one markdown file.

    python -m tests.gpu [--out gpu.md] [--rounds 2] [--only right|fast] [--tiny]

A few minutes on one GPU, where two ranks share it by gloo; half an hour on several. The exit code
is 1 if a check failed. `--tiny` takes the smallest sizes, and goes without a GPU, to try the
command itself.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
import tempfile
from pathlib import Path

from tests.gpu import checks, speed
from tests.gpu.machine import Machine
from tests.gpu.page import page


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("gpu.md"))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", choices=["right", "fast"])
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    machine = Machine.here()
    if not machine.gpus and not args.tiny:
        print("no GPU here; --tiny tries the command itself on the CPU", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        results = [] if args.only == "fast" else checks.all_of(machine, args.tiny, place, _say)
        rows = (
            []
            if args.only == "right"
            else speed.all_of(machine, args.tiny, args.rounds, place, _say)
        )
    args.out.write_text(page(machine, results, rows, _version(), args.tiny))
    print(f"written: {args.out}")
    failed = any(result.state == "failed" for result in results) or any(row.failed for row in rows)
    return int(failed)


def _say(text: str) -> None:
    print(text, flush=True)


def _version() -> str:
    try:
        return importlib.metadata.version("autoddp")
    except importlib.metadata.PackageNotFoundError:
        return "from a checkout"


if __name__ == "__main__":
    sys.exit(main())
