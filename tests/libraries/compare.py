"""Run a script in one process and on ranks, each in a fresh home, and compare what came of it."""

from __future__ import annotations

import filecmp
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path

from autoddp.tools.verify.findings import FILE, OTHER, PRINT, Difference, Findings
from autoddp.tools.verify.outputs import PICTURES, Repeats, files
from autoddp.tools.verify.same import unlike
from autoddp.tools.verify.text import compare_lines, shown
from tests.libraries.cases import Case
from tests.libraries.content import read
from tests.support.warm import ROOT, leftover

PATIENCE = 300.0  # seconds for each command
SHOWN = 3000  # characters of what a failed command wrote
# What one process does not repeat, and libraries write by themselves
CLOCKS = re.compile(
    r"(?<![.\w])20\d{6}[-_]\d{6}\b"  # a date and a time
    r"|\d{4}-\d\d-\d\d[ T_]\d\d[:-]\d\d[:-]\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"
    r"|(?<![.\w])20\d\d[-/]?[01]\d[-/]?[0-3]\d\b|\b\d{1,2}:\d\d(?::\d\d)?(?:[.,]\d+)?\b"
    r"|(?<=runtime\": )[\d.e+-]+|(?<=per_second\": )[\d.e+-]+"
    r"|(?<=runtime': )[^,}]+|(?<=per_second': )[^,}]+"
    r"|\b[\d.?]+ ?[kM]?(?:it|ba|examples?|steps?|B)/s\b|\b[\d.?]+ ?m?s/(?:it|step|epoch)\b"
    r"|\b[\d.]+ (?:seconds|minutes)\b"
    r"|\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b"  # ids, and what is made of times of files
    r"|(?<![.\w])(?=[0-9]*[a-f])[0-9a-f]{16,64}(?!\w)|(?<![.\w])\d{18}(?!\w)"
    r"|(?<=0x)[0-9a-f]{6,}|(?<=/tmp/)[\w.-]+"
    r"|(?<![.\w])1[789]\d{8}(?:\.\d+|\d{3}|\d{6}|\d{9})?\b"  # seconds since 1970, or parts of them
)
BAR = re.compile(r"[│█▉▊▋▌▍▎▏━╸╺─]|\d+%\|")  # drawn as the clock has it: how often is not said
# our lines, and what a library says only where it is slow
OURS = re.compile(r"\[autoddp\] |\s*$|Matplotlib is building the font cache")
NAMES = re.compile(
    r"\btmp[a-z0-9_]{8}\b|(?<=events\.out\.tfevents\.)[^/]*"
    r"|\d{4}[-_]\d\d[-_]\d\d|\d\d[-_]\d\d[-_]\d\d|\d{8}[-_]\d{6}"
    r"|[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}|(?<![0-9a-f])[0-9a-f]{16,64}(?![0-9a-f])"
)
TEMPORARY, HOME, WORK = "tmp", "home", "work"


@dataclass(frozen=True)
class Run:
    """What one or several runs of a command left."""

    codes: tuple[int, ...]
    out: str
    err: str
    folder: Path
    left: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class Row:
    """What is said of a script."""

    case: Case
    version: str | None
    largest: float = 0.0
    shared: float | None = None
    seconds: tuple[float, float] = (0.0, 0.0)  # of one process, and of ranks
    wrong: str = ""  # the first difference, or why it was not run

    @property
    def ran(self) -> bool:
        return self.version is not None and self.case.run


class Names(Repeats):
    """Names in which a time, a host, a process or an id stands are the same in all runs."""

    def form(self, name: str) -> str:
        return NAMES.sub("#", name)


def compare(case: Case, root: Path, options: Sequence[str] = ()) -> Row:
    """Run the script of a case; what differs is `wrong` in the row."""
    row = Row(case, case.version)
    if not row.ran:
        return replace(row, wrong=case.reason or f"{case.package} is not installed")
    report = root / "report.json"
    script = [str(case.script), *case.arguments]
    ranks = ["run", "-n", str(case.ranks), "--report", str(report), *options]
    python = execute([sys.executable, *script], root, "python", case.runs)
    if any(python.codes):
        return replace(row, wrong=f"python ends with {python.codes}:\n{python.err[-SHOWN:]}")
    got = execute([sys.executable, "-m", "autoddp", *ranks, *script], root, "ranks", case.runs)
    row = replace(row, seconds=(python.seconds, got.seconds))
    findings = Findings()
    try:
        same(findings, case, python, got)
    except AssertionError as error:
        return replace(row, wrong=str(error))
    if not findings.equal:
        described = [each.described() for each in findings.differences[:5]]
        return replace(row, largest=findings.largest, wrong="\n".join(described))
    shared = json.loads(report.read_text())["shared"]
    return replace(row, largest=findings.largest, shared=shared)


def execute(command: Sequence[str], root: Path, name: str, runs: int) -> Run:
    """Run a command in a fresh home and a fresh folder, whose paths are the same for each."""
    top = root / "run"
    work = top / WORK
    for folder in (work, top / HOME, top / TEMPORARY):
        folder.mkdir(parents=True)
    variables = {key: value for key, value in os.environ.items() if not PRIVATE.match(key)}
    variables |= FIXED | {"HOME": str(top / HOME), "TMPDIR": str(top / TEMPORARY)}
    codes, left, started = [], [], time.monotonic()
    logs = [root / f"{name}.{stream}" for stream in ("out", "err")]
    with open(logs[0], "wb") as out, open(logs[1], "wb") as err:
        for _ in range(runs):
            process = subprocess.Popen(
                command,
                cwd=work,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
            try:
                codes.append(process.wait(PATIENCE))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                codes.append(process.wait())
            spent = time.monotonic() - started
            left += leftover(process.pid)
    kept = root / name
    top.rename(kept)
    texts = [log.read_bytes().decode(errors="replace") for log in logs]
    return Run(tuple(codes), *texts, kept, tuple(left), spent)


PRIVATE = re.compile(r"HF_|XDG_|TORCH_HOME|TRANSFORMERS_|KERAS_|WANDB_|MLFLOW_|MPLCONFIG|AUTODDP_")
FIXED = {
    "PYTHONPATH": str(ROOT),
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "CUDA_VISIBLE_DEVICES": "",
    "MPLBACKEND": "agg",
    "HF_HUB_OFFLINE": "1",  # nothing is asked of others
    "COLUMNS": "120",
}


def same(findings: Findings, case: Case, want: Run, got: Run) -> None:
    """Compare exit codes, what is printed, and files.

    Raises:
        AssertionError: They differ in other ways than in numbers.
    """
    said = f"\n--- stdout\n{got.out[-SHOWN:]}\n--- stderr\n{got.err[-SHOWN:]}"
    assert got.codes == want.codes, f"exit codes {got.codes} instead of {want.codes}{said}"
    assert not got.left, f"outlived the command: {got.left}"
    texts = lines(want.out, case), lines(got.out, case)
    findings.take_all(compare_lines(PRINT, "stdout", texts, case.rtol), case.rtol)
    errors = lines(want.err, case), lines(got.err, case)
    findings.take_all(compare_lines(PRINT, "stderr", errors, case.rtol), case.rtol)
    for part in (WORK, HOME):
        same_files(findings, case, want.folder / part, got.folder / part)


def lines(text: str, case: Case) -> list[str]:
    """The lines that a terminal finally shows, without ours, bars and what the clock says."""
    kept = [x for x in shown(text) if not OURS.match(x) and not BAR.search(x)]
    for pattern in case.unlike:
        kept = [re.sub(pattern, "#", line) for line in kept]
    return [CLOCKS.sub("#", line) for line in kept if line != "#"]


def same_files(findings: Findings, case: Case, want: Path, got: Path, top: str = "") -> None:
    """Compare the names of all files below two folders, and their content by its kind."""
    names = Names()
    of_one, of_ranks = (names.named(files(folder)) for folder in (want, got))
    for name in sorted({*of_one, *of_ranks}):
        place = f"{top or want.name}/{name}"
        if any(fnmatch(place, pattern) for pattern in (*EACH_RUNS_OWN, *case.ignore)):
            continue
        pair = of_one.get(name), of_ranks.get(name)
        if pair[0] is None or pair[1] is None or pair[0].is_dir() != pair[1].is_dir():
            words = ["missing" if x is None else "there" for x in pair]
            findings.take(Difference(FILE, place, words[0], words[1], OTHER), case.rtol)
        elif pair[0].is_file():
            same_file(findings, case, place, pair[0], pair[1])


# caches in homes that hold times of files, and locks whose names are numbers of processes
EACH_RUNS_OWN = {
    "home/.cache/matplotlib*": "fonts, with the times of their files",
    "home/.config/matplotlib*": "likewise",
}


def same_file(findings: Findings, case: Case, place: str, want: Path, got: Path) -> None:
    """Compare the content of two files."""
    if filecmp.cmp(want, got, shallow=False) or want.suffix.lower() in PICTURES:
        findings.take(Difference(FILE, place, "", "", 0.0), case.rtol)
        return
    try:
        if is_archive(want):
            same_members(findings, case, place, want, got)
            return
        a, b = read(want), read(got)
    except Exception as error:  # whatever a reader may raise
        words = f"other bytes ({type(error).__name__})"
        findings.take(Difference(FILE, place, "one process's", words, OTHER), case.rtol)
        return
    if isinstance(a, str) and isinstance(b, str):
        texts = lines(a, case), lines(b, case)
        findings.take_all(compare_lines(FILE, place, texts, case.rtol), case.rtol)
    else:
        findings.take_all(unlike(a, b, place), case.rtol)


def is_archive(path: Path) -> bool:
    """Whether a file is an archive of files; `torch.save` makes a zip of any name."""
    if path.suffix == ".tar":
        return tarfile.is_tarfile(path)
    return path.suffix == ".zip"


def same_members(findings: Findings, case: Case, place: str, want: Path, got: Path) -> None:
    """Compare what two archives hold as files of a folder."""
    with tempfile.TemporaryDirectory() as folder:
        pair = Path(folder, "python"), Path(folder, "ranks")
        for path, into in zip((want, got), pair, strict=True):
            shutil.unpack_archive(path, into, filter="data" if path.suffix == ".tar" else None)
        same_files(findings, case, *pair, place)
