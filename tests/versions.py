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
from collections.abc import Sequence
from pathlib import Path

from autoddp.cli import tested

ROOT = Path(__file__).parents[1]
FAST = ("-m", "not slow and not cluster")
PYENV = Path.home() / ".pyenv" / "versions"


def pairs(torch: Sequence[str], python: Sequence[str], chosen: bool) -> list[tuple[str, str]]:
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


def run(torch: str, python: str, venv: Path, tests: Sequence[str]) -> int | str:
    """Run the tests of a pair; return pytest's exit code, or why it cannot run here."""
    found = interpreter(python)
    if found is None:
        return f"no Python {python} here"
    subprocess.run([found, "-m", "venv", venv], check=True)
    shutil.rmtree(ROOT / "build", ignore_errors=True)  # pip would install what is left there
    pip = [venv / "bin" / "pip", "install", "-q", "--no-cache-dir", ".[test]", f"torch=={torch}.*"]
    made = subprocess.run(pip, cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False)
    if made.returncode:
        errors = [line for line in made.stderr.splitlines() if line.startswith("ERROR")]
        return (errors or ["pip failed"])[-1]
    pytest = [venv / "bin" / "python", "-m", "pytest", "-q", "-n", "3", "--dist", "loadfile"]
    return subprocess.run([*pytest, "-p", "no:cacheprovider", *tests], cwd=ROOT).returncode


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.versions", description=__doc__)
    parser.add_argument("tests", nargs="*", help="what pytest is given; all tests by default")
    for name in ("--torch", "--python"):
        parser.add_argument(name, type=lambda given: given.split(","), metavar="VERSION,...")
    parser.add_argument("--fast", action="store_true", help="the quick tests alone")
    given = parser.parse_args(arguments)
    chosen = given.torch is not None or given.python is not None
    tests, lines, codes = [*(FAST if given.fast else ()), *given.tests], [], []
    for torch, python in pairs(given.torch or tested.TORCH, given.python or tested.PYTHON, chosen):
        with tempfile.TemporaryDirectory() as folder:
            found = run(torch, python, Path(folder), tests)
        words = f"not run: {found}" if isinstance(found, str) else f"exit code {found}"
        lines.append(f"torch {torch}, Python {python}: {words}")
        codes += [found] if isinstance(found, int) else []
    print("\n".join(lines))  # pytest has printed each count of tests
    return int(not codes or any(codes))


if __name__ == "__main__":
    sys.exit(main())
