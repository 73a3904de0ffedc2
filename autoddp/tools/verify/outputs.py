"""Compare two runs by what they left: how they ended, what they printed, each file by its kind."""

from __future__ import annotations

import filecmp
import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from autoddp.report import PREFIX
from autoddp.tools.record.recording import Recording
from autoddp.tools.verify.findings import ENDING, FILE, OTHER, PRINT, Difference, Findings
from autoddp.tools.verify.text import compare_lines, shown

PICTURES = {".png", ".jpg", ".jpeg", ".gif", ".pdf", ".svg"}  # rounding may move a point in them
WORD = re.compile(r"\w*\d\w*")  # of a name: what a clock or a counter may have made
Files = dict[str, Path]


class Again:
    """Two runs of one process, with clocks at another pace: what they do not repeat is left out.

    Without runs, all is compared.
    """

    def __init__(self, *runs: Recording) -> None:
        self.runs = runs
        self.kept = [files(run.folder) for run in runs]
        self.files = [self.named(found) for found in self.kept]

    def named(self, found: Files) -> Files:
        """Name the files of a run: those whose names one process does not repeat by their form."""
        made: Files = {}
        count: Counter[str] = Counter()
        for name in sorted(found, key=lambda name: found[name].lstat().st_mtime_ns):
            form = self.form(name)
            count[form] += 1
            made[form if count[form] == 1 else f"{form} ({count[form]})"] = found[name]
        return made

    def form(self, name: str) -> str:
        """Return a name that is the same in all runs."""
        return name if all(name in found for found in self.kept) else WORD.sub("#", name)


def compare_outputs(
    findings: Findings, want: Recording, got: Recording, rtol: float, again: Again
) -> None:
    """Compare exit codes, prints and files of two runs."""
    codes = str(want.code), str(got.code)
    findings.take(Difference(ENDING, "", *codes, 0.0 if want.code == got.code else OTHER), rtol)
    for name in ("stdout", "stderr"):
        texts = stream(want, name), stream(got, name)
        known = [stream(run, name) for run in again.runs]
        findings.take_all(compare_lines(PRINT, name, texts, rtol, known=known), rtol)
    compare_files(findings, (want.folder, got.folder), rtol, again=again)


def stream(run: Recording, name: str) -> list[str]:
    """Return the lines that a terminal shows of a stream in the end, without autoddp's."""
    text = run.out if name == "stdout" else run.err
    return [line for line in shown(text) if not line.startswith(PREFIX)]


def compare_files(
    findings: Findings,
    folders: tuple[Path, Path],
    rtol: float,
    last_digit: bool = True,
    again: Again | None = None,
) -> None:
    """Compare the names of all files, and the content of those that a run has written."""
    again = again or Again()
    theirs, ours = (again.named(files(folder)) for folder in folders)
    for name in sorted({*theirs, *ours}):
        kinds = [_kind(some.get(name)) for some in (theirs, ours)]
        if kinds[0] != kinds[1]:
            findings.take(Difference(FILE, name, kinds[0], kinds[1], OTHER), rtol)
        elif kinds[0] == "a file":
            pair = theirs[name], ours[name]
            if all(untouched(*one) for one in zip(pair, folders, strict=True)):
                continue
            here, known = Findings(), [some[name] for some in again.files if name in some]
            here.take_all(compare_file(name, pair, rtol, last_digit, known), rtol)
            findings.take(Difference(FILE, name, "", "", here.largest), OTHER)
            findings.compared[FILE].differ += not here.equal
            findings.differences += here.differences


def files(top: Path) -> Files:
    """Return the files and folders that a run left, by name, without links to the user's data."""
    found: Files = {}
    for folder, *some in os.walk(top):
        for path in (Path(folder, name) for names in some for name in names):
            inside = path.relative_to(top)
            users = path.is_symlink() and os.path.lexists(inside)  # in the current folder
            if not users and "__pycache__" not in path.parts:
                found[str(inside)] = path
    return found


def untouched(path: Path, folder: Path) -> bool:
    """Return whether a file is as it was copied into the run's folder, by its time."""
    with suppress(FileNotFoundError, NotADirectoryError):
        original = path.relative_to(folder)  # in the current folder
        return path.stat().st_mtime_ns == original.stat().st_mtime_ns
    return False


def _kind(path: Path | None) -> str:
    if path is None:
        return "not there"
    if path.is_dir():
        return "a folder"
    return "a file" if path.exists() else "a link to nothing"


def compare_file(
    name: str, pair: tuple[Path, Path], rtol: float, last_digit: bool, known: list[Path]
) -> Iterator[Difference]:
    """Yield the differences of two files: by numbers where they hold numbers, else by bytes.

    `known` are the files of two runs of one process: what they do not repeat is left out.
    """
    from autoddp.tools.verify.load import load
    from autoddp.tools.verify.same import unlike

    known = known if len(known) == 2 else []
    if filecmp.cmp(*pair, shallow=False) or pair[0].suffix.lower() in PICTURES:
        return
    try:
        want, got, *models = (load(path) for path in (*pair, *known))
    except Exception:  # a file that is cut off, or an object that is loaded, may raise anything
        if not known or filecmp.cmp(known[0], known[1], shallow=False):
            yield Difference(FILE, name, "one process's", "other bytes", OTHER)
        return
    if isinstance(want, str) and isinstance(got, str):
        texts = want.splitlines(), got.splitlines()
        lines = [model.splitlines() for model in models if isinstance(model, str)]
        yield from compare_lines(FILE, name, texts, rtol, last_digit, lines)
        return
    places = {found.place for found in unlike(models[0], models[1], name)} if models else set[Any]()
    yield from (found for found in unlike(want, got, name) if found.place not in places)
