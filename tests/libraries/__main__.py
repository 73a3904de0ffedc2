"""Scripts on libraries, in one process and on ranks: `python -m tests.libraries [NAME ...]`.

With all of them, one at a time, `docs/libraries.md` is written. The last line has pytest's form.
Batches stay sharded, so that the rules are tested; `--options ""` runs what a user runs.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.libraries.cases import HERE, Case, cases
from tests.libraries.compare import Row, compare
from tests.libraries.page import result, write
from tests.support.warm import ROOT

OF_CUDA = re.compile("nvidia-|cuda-|triton")  # a build of torch asks for its own


def rows(chosen: Sequence[Case], jobs: int, options: Sequence[str], keep: str) -> Iterator[Row]:
    """Compare each case, `jobs` of them at a time, in the order of the table."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        top = Path(keep or folder).resolve()
        yield from pool.map(lambda case: compare(case, top / case.name, options), chosen)


def say(row: Row) -> str:
    """One line; several where something is wrong."""
    name = f"{row.case.name} ({row.case.package} {row.version or 'missing'})"
    if not row.ran:
        return f"SKIPPED {name}: {row.wrong}"
    shared = "" if row.shared is None else f", {row.shared:.0%} sharded"
    took = f"{row.seconds[0]:.1f} s, {row.case.ranks} ranks {row.seconds[1]:.1f} s"
    came = f"FAILED {name}: {row.wrong}\n" if row.wrong else f"passed {name}: {result(row)}"
    return f"{came}{shared}, {took}"


def newest(arguments: Sequence[str]) -> int:
    """Run the scripts in an environment with the newest versions that pip finds."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        python = f"{folder}/bin/python"
        install = [python, "-m", "pip", "install", "-q", "--no-cache-dir", ".[libraries]"]
        subprocess.run(install, cwd=ROOT, check=True)
        return subprocess.run([python, "-m", "tests.libraries", *arguments], cwd=ROOT).returncode


def pin() -> int:
    """Write `constraints.txt` by uv: for any Python and any build of torch."""
    command = "uv pip compile pyproject.toml --extra libraries --universal --python-version 3.11"
    bare = ["--no-annotate", "--no-header", "--quiet"]
    done = subprocess.run([*command.split(), *bare], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    kept = [pin for pin in done.stdout.splitlines(keepends=True) if not OF_CUDA.match(pin)]
    if not done.returncode:
        (HERE / "constraints.txt").write_text("".join(kept))
    return done.returncode


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.libraries", description=__doc__)
    parser.add_argument("names", nargs="*", help="scripts of tests/libraries/scripts; else all")
    parser.add_argument("--newest", action="store_true", help="with the newest versions")
    parser.add_argument("--pin", action="store_true", help="write constraints.txt, by uv")
    parser.add_argument("--jobs", type=int, default=1, help="cases at a time")
    parser.add_argument("--options", default="--placement sharded", help="options for the ranks")
    parser.add_argument("--keep", default="", help="a folder for what the runs leave")
    parser.add_argument("--no-page", action="store_true", help="do not write docs/libraries.md")
    given = parser.parse_args(arguments)
    if given.pin:
        return pin()
    if given.newest:
        return newest(["--no-page", "--jobs", str(given.jobs), *given.names])
    known, started, done = cases(), time.monotonic(), []
    chosen = [known[name] for name in given.names or known]
    for row in rows(chosen, given.jobs, given.options.split(), given.keep):
        print(say(row), flush=True)
        done.append(row)
    if not given.names and not given.no_page and given.jobs == 1:  # else seconds say nothing
        write(done)
    failed = sum(row.ran and bool(row.wrong) for row in done)
    skipped = sum(not row.ran for row in done)
    counts = {"failed": failed, "passed": len(done) - failed - skipped, "skipped": skipped}
    words = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    print(f"{words or 'no tests ran'} in {time.monotonic() - started:.2f}s")
    return int(failed > 0 or not counts["passed"])


if __name__ == "__main__":
    sys.exit(main())
