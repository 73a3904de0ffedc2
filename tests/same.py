"""Is what N ranks printed and wrote what one process did? See autoddp/tools/verify/same.py.

Every comparison returns the largest difference it met and fails with the place and both values
where that is above `rtol`. An `rtol` of 0 asks for the same bytes.
"""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import numpy as np
import torch

from autoddp.tools.verify.same import CLOCK, NUMBER, same_array, same_text, same_value
from tests.warm import Run

__all__ = ["NUMBER", "same_files", "same_run", "same_terminal", "same_text", "same_value"]

OURS = re.compile(r"\[autoddp\] |\s*$|.*\d%")  # our own lines, and bars that the clock draws
TEXT = {".txt", ".csv", ".json", ".log"}
PICTURES = {".png", ".pdf"}
WEIGHTS = {".pt", ".pth"}


def same_run(want: Run, got: Run, rtol: float) -> float:
    """Compare exit codes, terminals and files of two runs."""
    worst = same_terminal(want, got, rtol)
    return max(worst, same_files(want.folder, got.folder, rtol))


def same_terminal(want: Run, got: Run, rtol: float) -> float:
    """Compare exit codes and what was printed; nothing is added to stderr but our own lines."""
    shown = f"\n--- stdout\n{got.out[-2000:]}\n--- stderr\n{got.err[-4000:]}"
    assert got.code == want.code, f"exit code {got.code} instead of {want.code}{shown}"
    added = [line for line in got.err.splitlines() if line not in want.err.splitlines()]
    strange = [line for line in added if not OURS.match(line)]
    assert not strange, f"on stderr: {strange[0]!r}{shown}"
    assert not got.left, f"outlived the command: {got.left}"
    return same_text(want.out, got.out, rtol, "stdout")


def same_files(want: Path, got: Path, rtol: float) -> float:
    """The same names, and content that agrees by the kind of file."""
    theirs, ours = _names(want), _names(got)
    assert sorted(ours) == sorted(theirs), f"files {sorted(ours)} instead of {sorted(theirs)}"
    return max((_same_file(theirs[n], ours[n], rtol, n) for n in theirs), default=0.0)


def _same_file(want: Path, got: Path, rtol: float, name: str) -> float:
    if want.is_dir():
        return 0.0
    if want.suffix in TEXT:
        return same_text(want.read_text(), got.read_text(), rtol, name)
    if want.suffix in WEIGHTS:
        with zipfile.ZipFile(got) as archive:
            pickles = [archive.read(n) for n in archive.namelist() if n.endswith(".pkl")]
        assert not any(b"autoddp" in text for text in pickles), f"{name} names a class of ours"
        a, b = (torch.load(path, "cpu", weights_only=False) for path in (want, got))
        return same_value(a, b, rtol, name)
    if want.suffix == ".npy":
        return same_array(np.load(want), np.load(got), rtol, name)
    if want.suffix == ".npz":
        with np.load(want) as a, np.load(got) as b:
            assert a.files == b.files, f"{name}: {b.files} instead of {a.files}"
            return max(same_array(a[key], b[key], rtol, f"{name}[{key}]") for key in a.files)
    if want.suffix in PICTURES:
        assert got.read_bytes()[:4] == want.read_bytes()[:4], f"{name} is no such picture"
        return 0.0
    assert got.read_bytes() == want.read_bytes(), f"{name} holds other bytes"
    return 0.0


def _names(folder: Path) -> dict[str, Path]:
    """Files and folders by their names in the folder, with the clock's part taken out."""
    names = {path: CLOCK.sub("TIME", str(path.relative_to(folder))) for path in folder.rglob("*")}
    return {name + "/" * path.is_dir(): path for path, name in names.items()}
