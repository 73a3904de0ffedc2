"""All tests on each torch and Python: `python -m tests.versions --fast --torch 2.6 --python 3.13`.

Each pair gets an environment of its own by pip, some 7 GB, which is removed after its tests. Pairs
that cannot be had here (no such Python, no such torch for it) are named, with the reason.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from autoddp.cli import tested

ROOT = Path(__file__).parents[1]
FAST = ("-m", "not slow and not cluster")
PYENV = Path.home() / ".pyenv" / "versions"
Pair = tuple[str, str]  # torch, Python


@dataclass(frozen=True)
class Result:
    """What came of a pair: numbers of tests, or why there are none."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    why: str = ""
    ran: bool = True

    @property
    def words(self) -> str:
        if self.why:
            return self.why
        counts = f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"
        return f"{counts}, {self.seconds:.0f} s"


def pairs(torch: Sequence[str], python: Sequence[str], chosen: bool) -> list[Pair]:
    """All pairs where some were chosen; else every torch once, and its ends on every Python."""
    ends = {torch[0], torch[-1]}
    return [(t, p) for t in torch for p in python if chosen or p == python[0] or t in ends]


def interpreter(version: str) -> str | None:
    """A Python of this version: this one, one on the path, or pyenv's."""
    known = [str(path) for path in sorted(PYENV.glob(f"{version}.*/bin/python"))]
    for path in [sys.executable, shutil.which(f"python{version}"), *known]:
        if path is not None:
            ask = "import sys; print('%d.%d' % sys.version_info[:2])"
            done = subprocess.run([path, "-c", ask], capture_output=True, text=True, check=False)
            if done.stdout.strip() == version:
                return path
    return None


def counted(report: str) -> tuple[int, int, int]:
    """Tests passed, failed and skipped, from pytest's XML."""
    suites = [dict(suite.attrib) for suite in ElementTree.fromstring(report).iter("testsuite")]
    total, failures, errors, skipped = (
        sum(int(suite.get(name, 0)) for suite in suites)
        for name in ("tests", "failures", "errors", "skipped")
    )
    return total - failures - errors - skipped, failures + errors, skipped


def table(results: Mapping[Pair, Result]) -> str:
    """A line for each torch, a column for each Python."""
    lines, columns = dict.fromkeys(t for t, _ in results), dict.fromkeys(p for _, p in results)
    rows = [["torch", *(f"Python {p}" for p in columns)], ["---"] * (len(columns) + 1)]
    for t in lines:
        found = (results.get((t, p)) for p in columns)
        rows.append([t, *("" if one is None else one.words for one in found)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def run(pair: Pair, folder: Path, tests: Sequence[str]) -> Result:
    """Make the environment of a pair, and run the tests in it."""
    torch, python = pair
    found, venv = interpreter(python), folder / f"torch-{torch}-python-{python}"
    if found is None:
        return Result(why=f"not run: no Python {python} here", ran=False)
    subprocess.run([found, "-m", "venv", venv], check=True)
    shutil.rmtree(ROOT / "build", ignore_errors=True)  # pip would install what is left there
    pip = [venv / "bin" / "pip", "install", "-q", "--no-cache-dir", ".[test]", f"torch=={torch}.*"]
    made = subprocess.run(pip, cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False)
    if made.returncode:
        errors = [line for line in made.stderr.splitlines() if line.startswith("ERROR")]
        return Result(why=f"not run: {(errors or ['pip failed'])[-1]}", ran=False)
    report, began = venv / "report.xml", time.monotonic()
    pytest = [venv / "bin" / "python", "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile"]
    options = ["-p", "no:cacheprovider", f"--junitxml={report}"]
    done = subprocess.run([*pytest, *options, *tests], cwd=ROOT, check=False)
    seconds = time.monotonic() - began
    if not report.exists():
        return Result(failed=1, why=f"pytest ended with exit code {done.returncode}")
    passed, failed, skipped = counted(report.read_text())
    if done.returncode and not failed:  # no test was found, or pytest itself has failed
        return Result(failed=1, why=f"pytest ended with exit code {done.returncode}")
    return Result(passed, failed, skipped, seconds)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.versions", description=__doc__)
    parser.add_argument("tests", nargs="*", help="what pytest is given; all tests by default")
    for name in ("--torch", "--python"):
        parser.add_argument(name, type=lambda given: given.split(","), metavar="VERSION,...")
    parser.add_argument("--fast", action="store_true", help="the quick tests alone")
    parser.add_argument("--folder", type=Path, help="for the environments; a temporary one")
    parser.add_argument("--keep", action="store_true", help="keep them in --folder")
    given = parser.parse_args(arguments)
    if given.keep and given.folder is None:
        parser.error("--keep needs a --folder")
    chosen = given.torch is not None or given.python is not None
    results: dict[Pair, Result] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = (given.folder or Path(temporary)).absolute()
        tests = [*(FAST if given.fast else ()), *given.tests]
        for pair in pairs(given.torch or tested.TORCH, given.python or tested.PYTHON, chosen):
            results[pair] = run(pair, folder, tests)
            print(f"torch {pair[0]}, Python {pair[1]}: {results[pair].words}", flush=True)
            if not given.keep:
                shutil.rmtree(folder / f"torch-{pair[0]}-python-{pair[1]}", ignore_errors=True)
    print(table(results))
    ran = [result for result in results.values() if result.ran]
    return int(not ran or any(result.failed for result in ran))


if __name__ == "__main__":
    sys.exit(main())
