"""Compare two runs by what they left: how they ended, what they printed, each file by its kind."""

from __future__ import annotations

import filecmp
import os
import re
import zipfile
from itertools import count
from pathlib import Path
from typing import Any

from autoddp.report import PREFIX
from autoddp.tools.rehearse.runs import Left
from autoddp.tools.verify.findings import ENDING, FILE, OTHER, PRINT, Difference, Findings
from autoddp.tools.verify.same import Unlike, same_value
from autoddp.tools.verify.text import CLOCK, compare_text

BAR = re.compile(r".*\d%")  # a progress bar, which the clock draws
PICTURES = {".png", ".jpg", ".jpeg", ".gif", ".pdf", ".svg"}
ANY = float("inf")  # an rtol that lets every number pass, to learn how far it is off


def compare_outputs(want: Left, got: Left, rtol: float) -> Findings:
    """Compare exit codes, prints and files, without autoddp's lines and what the clock draws."""
    findings = Findings()
    findings.add(ENDING)
    if want.code != got.code:
        findings.differs(Difference(ENDING, "exit code", str(want.code), str(got.code), OTHER))
    for name, a, b in (
        ("stdout", want.out, got.out),
        ("stderr", _theirs(want.err), _theirs(got.err)),
    ):
        compare_text(findings, PRINT, name, (a, b), rtol)
    compare_files(findings, want, got, rtol)
    return findings


def _theirs(err: str) -> str:
    """Return the script's own lines of stderr, without autoddp's and without progress bars."""
    kept = [
        line for line in err.splitlines() if not line.startswith(PREFIX) and not BAR.match(line)
    ]
    return "\n".join(kept)


def compare_files(
    findings: Findings, want: Left, got: Left, rtol: float, last_digit: bool = True
) -> None:
    """Compare the names of all files, and the content of those that both runs have."""
    theirs, ours = files(want), files(got)
    for name in sorted({*theirs, *ours}):
        if name not in ours or name not in theirs:
            there = ("there", "not there") if name in theirs else ("not there", "there")
            findings.differs(Difference(FILE, name, *there, OTHER))
            continue
        a, b = theirs[name], ours[name]
        if (kind := _kind(a)) != _kind(b):
            findings.differs(Difference(FILE, name, kind, _kind(b), OTHER))
        if kind != "a file" or kind != _kind(b):
            continue
        if filecmp.cmp(a, b, shallow=False):  # piece by piece: they may be larger than memory
            if not (untouched(a, want) and untouched(b, got)):
                findings.add(FILE)
        else:
            compare_file(findings, name, (a, b), rtol, last_digit)


def files(left: Left) -> dict[str, Path]:
    """Return the files and folders that a run left, by name, without links to the user's data.

    Names that begin with `/` are of files outside of the run's folder. Of files whose names differ
    by the clock alone, all but the first have a number, in the order of time.
    """
    found: dict[str, Path] = {}
    for top, prefix in ((left.folder, ""), (left.outside, "/")):
        walk = os.walk(top)
        paths = (Path(folder, name) for folder, *some in walk for names in some for name in names)
        for path in sorted(paths):
            inside = path.relative_to(top)
            users = path.is_symlink() and os.path.lexists(inside)  # in the current folder
            if not users and "__pycache__" not in path.parts:
                name = first = prefix + CLOCK.sub("TIME", str(inside))
                numbers = count(2)
                while name in found:
                    name = f"{first} ({next(numbers)})"
                found[name] = path
    return found


def untouched(path: Path, left: Left) -> bool:
    """Return whether a file is as it came into the run's folder: its time is the original's."""
    if not path.is_relative_to(left.folder):
        return False
    try:
        original = path.relative_to(left.folder)  # in the current folder
        return path.stat().st_mtime_ns == original.stat().st_mtime_ns
    except (FileNotFoundError, NotADirectoryError):
        return False


def _kind(path: Path) -> str:
    if path.is_dir():
        return "a folder"
    return "a file" if path.exists() else "a link to nothing"


def compare_file(
    findings: Findings, name: str, pair: tuple[Path, Path], rtol: float, last_digit: bool = True
) -> None:
    """Compare two files by their kind: numbers where they hold numbers, else bytes."""
    if pair[0].suffix.lower() in PICTURES and _start(pair[0]) == _start(pair[1]):
        findings.add(FILE)
        findings.notes.append(f"{name} is a picture with other bytes: not compared further")
        return
    try:
        loaded = load(pair[0]), load(pair[1])
    except Exception:  # a file that is cut off, or an object that is loaded, may raise anything
        size, message = OTHER, "other bytes"
    else:
        if isinstance(loaded[0], str):
            lines = Findings()
            compare_text(lines, FILE, name, (loaded[0], str(loaded[1])), rtol, last_digit)
            findings.add(FILE, lines.worst(FILE))
            findings.counts[FILE].differ += not lines.equal
            findings.differences += lines.differences
            return
        size, message = value_off(loaded, rtol, name)
    findings.add(FILE, size)
    if size > rtol or size == OTHER:
        findings.differs(Difference(FILE, name, "one process's", message, size))


def value_off(pair: tuple[Any, Any], rtol: float, name: str) -> tuple[float, str]:
    """Return how far the values of two files are off, and where they first differ too much."""
    message = ""
    try:
        same_value(*pair, rtol, name)
    except Unlike as error:
        message = str(error).removeprefix(f"{name}: ")
    try:
        return same_value(*pair, ANY, name), message
    except Unlike:
        return OTHER, message


def _start(path: Path) -> bytes:
    """Return the bytes by which a file's kind is told."""
    with open(path, "rb") as file:
        return file.read(4)


def load(path: Path) -> Any:
    """Load a file: a checkpoint, arrays, the files of an archive, or text.

    Raises:
        Exception: The file is none of these, or broken; an object in it may raise anything.
    """
    import numpy as np

    from autoddp.tools.verify.placeholder_unpickler import load_checkpoint

    if _start(path) == b"\x93NUM":
        return np.load(path, allow_pickle=False)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            inside = archive.namelist()
            if any(name.endswith("/data.pkl") for name in inside):
                return load_checkpoint(path)
            if inside and all(name.endswith(".npy") for name in inside):
                with np.load(path, allow_pickle=False) as arrays:
                    return dict(arrays)
            return {name: archive.read(name) for name in inside}
    return path.read_text(encoding="utf-8")
