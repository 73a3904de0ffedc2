"""Compare the outputs of two runs: exit codes, printed lines, and files."""

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
from autoddp.tools.verify.findings import ENDING, FILE, OTHER, PRINT, SMALL, Difference, Findings
from autoddp.tools.verify.text import compare_lines, shown

PICTURES = {".png", ".jpg", ".jpeg", ".gif", ".pdf", ".svg"}  # rounding may move a point in them
WORD = re.compile(r"\w*\d\w*")  # the part of a name that may be a time or a counter
Files = dict[str, Path]


class Repeats:
    """Two runs of one process; values that differ between them are not compared.

    Without runs, all values are compared.
    """

    def __init__(self, *runs: Recording) -> None:
        self.runs = runs
        self.originals = [files(run.folder) for run in runs]
        self.files = [self.named(found) for found in self.originals]

    def named(self, found: Files) -> Files:
        """Return the files of a run under names that are the same in all runs."""
        result: Files = {}
        count: Counter[str] = Counter()
        for name in sorted(found, key=lambda name: found[name].lstat().st_mtime_ns):
            form = self.form(name)
            count[form] += 1
            result[form if count[form] == 1 else f"{form} ({count[form]})"] = found[name]
        return result

    def form(self, name: str) -> str:
        """Return a name without words that change between runs."""
        return name if all(name in found for found in self.originals) else WORD.sub("#", name)


def compare_outputs(
    findings: Findings, want: Recording, got: Recording, rtol: float, repeats: Repeats
) -> None:
    """Compare exit codes, printed lines and files of two runs."""
    codes = str(want.code), str(got.code)
    findings.take(Difference(ENDING, "", *codes, 0.0 if want.code == got.code else OTHER), rtol)
    for name in ("stdout", "stderr"):
        texts = stream(want, name), stream(got, name)
        known = [stream(run, name) for run in repeats.runs]
        findings.take_all(compare_lines(PRINT, name, texts, rtol, known=known), rtol)
    compare_files(findings, (want.folder, got.folder), rtol, repeats=repeats)


def stream(run: Recording, name: str) -> list[str]:
    """Return the lines of a stream as a terminal finally shows them, without autoddp's."""
    text = run.out if name == "stdout" else run.err
    return [line for line in shown(text) if not line.startswith(PREFIX)]


def compare_files(
    findings: Findings,
    folders: tuple[Path, Path],
    rtol: float,
    last_digit: bool = True,
    repeats: Repeats | None = None,
) -> None:
    """Compare the names of all files, and the content of those that a run has written."""
    repeats = repeats or Repeats()
    of_one, of_ranks = (repeats.named(files(folder)) for folder in folders)
    for name in sorted({*of_one, *of_ranks}):
        kinds = [_kind(found.get(name)) for found in (of_one, of_ranks)]
        if kinds[0] != kinds[1]:
            findings.take(Difference(FILE, name, kinds[0], kinds[1], OTHER), rtol)
        elif kinds[0] == "a file":
            pair = of_one[name], of_ranks[name]
            if all(untouched(*each) for each in zip(pair, folders, strict=True)):
                continue
            inner, known = (
                findings.inside(),
                [found[name] for found in repeats.files if name in found],
            )
            inner.take_all(compare_file(name, pair, rtol, last_digit, known), rtol)
            findings.take(Difference(FILE, name, "", "", inner.largest), OTHER)
            findings.compared[FILE].differ += not inner.equal
            findings.differences += inner.differences


def files(top: Path) -> Files:
    """Return the files and folders of a run by name, without links to the user's data."""
    found: Files = {}
    for folder, *lists in os.walk(top):
        for path in (Path(folder, name) for names in lists for name in names):
            relative = path.relative_to(top)
            users = path.is_symlink() and os.path.lexists(relative)  # in the current folder
            if not users and "__pycache__" not in path.parts:
                found[str(relative)] = path
    return found


def untouched(path: Path, folder: Path) -> bool:
    """Return whether a file was not changed after it was copied to the run, by its time."""
    with suppress(FileNotFoundError, NotADirectoryError):
        original = path.relative_to(folder)  # in the current folder
        return path.stat().st_mtime_ns == original.stat().st_mtime_ns
    return False


def _kind(path: Path | None) -> str:
    if path is None:
        return "missing"
    if path.is_dir():
        return "a folder"
    return "a file" if path.exists() else "a broken link"


def compare_file(
    name: str, pair: tuple[Path, Path], rtol: float, last_digit: bool, known: list[Path]
) -> Iterator[Difference]:
    """Yield the differences of two files: of their numbers, or of their bytes.

    With `last_digit`, as `verify` asks, numbers that may consist of rounding errors count less.
    `known` are the files of two runs of one process; values that differ between them are skipped.
    """
    from autoddp.tools.verify.load import load
    from autoddp.tools.verify.same import rounding_size, unlike

    known = known if len(known) == 2 else []
    if filecmp.cmp(*pair, shallow=False) or pair[0].suffix.lower() in PICTURES:
        return
    try:
        want, got, *models = (load(path) for path in (*pair, *known))
    except Exception:  # broken files and the objects in them may raise anything
        if not known or filecmp.cmp(known[0], known[1], shallow=False):
            yield Difference(FILE, name, "one process's", "other bytes", OTHER)
        return
    if isinstance(want, str) and isinstance(got, str):
        texts = want.splitlines(), got.splitlines()
        lines = [model.splitlines() for model in models if isinstance(model, str)]
        yield from compare_lines(FILE, name, texts, rtol, last_digit, lines)
        return
    skip = {each.place for each in unlike(models[0], models[1], name)} if models else set[Any]()
    found = unlike(want, got, name, least=rounding_size(want) if last_digit else SMALL)
    yield from (each for each in found if each.place not in skip)
