"""Runs of one script, each in a copy of the current folder, and what they leave."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import NoReturn

from autoddp import launch
from autoddp.comm.world import ADDED
from autoddp.errors import BadInput
from autoddp.options import Options
from autoddp.process.boot import BOOT
from autoddp.process.script import Script
from autoddp.report import INSTALLED, PREFIX
from autoddp.tools.copies import copy_in_place
from autoddp.tools.record.recording import Recording, entries
from autoddp.tools.record.script import RecordedScript, check_own

RECORDED = "autoddp.tools.record.script"
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACE = 40  # seconds that a run has to end in after it was told to
TAIL = 12  # lines of a failure that are shown
REAL = "each run has a copy of this folder; what the script writes elsewhere, it writes for real"


@dataclass(frozen=True)
class Left(Recording):
    """The remains of a run: its recording, what it printed, and its copy of the folder."""

    out: str = ""  # what was printed
    err: str = ""
    folder: Path = Path()  # where numbers are compared; else it is gone


@dataclass
class Runner:
    """Runs of one script, one after the other, each where the one before was.

    The paths are the same in all runs, so that what is printed of them is, too.
    """

    script: Script
    numbers: bool  # whether fingerprints of what was computed are taken
    quiet: bool
    root: Path  # of all that the runs write

    @classmethod
    @contextmanager
    def of(cls, script: Script, numbers: bool, quiet: bool) -> Iterator[Runner]:
        """Make a runner; a signal ends the run that goes on, and the copies are removed."""
        before = {number: signal.signal(number, stop) for number in STOPS}
        root = Path(os.path.realpath(tempfile.mkdtemp(prefix="autoddp-")))
        try:
            runner = cls(script, numbers, quiet, root)
            runner.say(REAL)
            yield runner
        finally:
            shutil.rmtree(root, ignore_errors=True)
            for number, handler in before.items():
                signal.signal(number, handler)

    def run(
        self,
        name: str,
        options: Options,
        *,
        steps: int | None = None,
        changes: tuple[str, ...] = (),
        environ: Mapping[str, str] | None = None,
    ) -> Left:
        """Run the script once, in a copy of the current folder, up to so many optimizer steps.

        `changes` are of `RecordedScript`; `environ` are variables beside those of this process.
        """
        results = Path(tempfile.mkdtemp(dir=self.root))
        records, temporary, top = results / "records", self.root / "tmp", self.root / "run"
        records.mkdir()
        temporary.mkdir()
        here = Path(os.path.realpath(os.getcwd()))
        copy = copy_in_place(here, top)
        task = RecordedScript(
            self._name(here, copy),
            *(self.script.args, self.script.module, self.script.text),
            options=replace(options, quiet=True),
            records=str(records),
            numbers=self.numbers,
            steps=steps,
            changes=changes,
        )
        (results / "task").write_bytes(pickle.dumps(task))
        found = dict(os.environ) | {"TMPDIR": str(temporary), "PYTHONDONTWRITEBYTECODE": "1"}
        if found.get("PYTHONHASHSEED", "random") in ("", "random"):
            found["PYTHONHASHSEED"] = "0"  # one order of sets in all runs
        started = time.monotonic()
        code = self._start(results, copy, found | dict(environ or {}))
        seconds = time.monotonic() - started
        copy.rename(results / "folder")
        for folder in (top, temporary):
            shutil.rmtree(folder, ignore_errors=True)
        self.say(f"{name}: {seconds:.1f} s")
        # no text files: a carriage return is no end of a line
        out, err = ((results / of).read_bytes().decode(errors="replace") for of in ("out", "err"))
        left = Left(name, code, *entries(records), seconds, out, err, results / "folder")
        if not self.numbers:
            shutil.rmtree(results, ignore_errors=True)
        return left

    def say(self, text: str) -> None:
        """Print a line of progress, unless --quiet."""
        if not self.quiet:
            print(f"{PREFIX} {text}", file=sys.stderr, flush=True)

    def _name(self, here: Path, copy: Path) -> str:
        """Return the script's name in the copy: a whole path into the folder is one into it."""
        name, path = self.script.name, Path(self.script.name)
        inside = not self.script.module and path.is_absolute() and path.is_relative_to(here)
        return str(copy / path.relative_to(here)) if inside else name

    def _start(self, results: Path, copy: Path, environ: Mapping[str, str]) -> int:
        """Start the run, wait for its end, and return its exit code, negative for a signal."""
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        command = [sys.executable, *flags, BOOT, RECORDED, str(results / "task")]
        with open(results / "out", "wb") as out, open(results / "err", "wb") as err:
            process = subprocess.Popen(
                command, cwd=copy, env=environ, stdin=subprocess.DEVNULL, stdout=out, stderr=err
            )
        try:
            return process.wait()
        finally:
            if process.poll() is None:  # this command is stopped
                process.terminate()
                try:
                    process.wait(GRACE)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def check(script: Script, options: Options, command: str) -> None:
    """Check that the script can be run with these options, on one process and on ranks.

    Raises:
        BadInput: The script cannot be run so.
    """
    script.find()
    launch.check_disabled(options)
    if os.path.realpath(os.getcwd()) == "/":
        raise BadInput(
            f"autoddp {command} runs in copies of the current folder, which is /; change into the "
            "folder of the script"
        )
    if "RANK" in os.environ or "WORLD_SIZE" in os.environ:
        names = ", ".join(name for name in ADDED if name in os.environ)
        raise BadInput(
            f"{names} are set: autoddp {command} starts ranks by itself; run it without a launcher"
        )
    check_own(script, options)


def tail(text: str) -> list[str]:
    """Cut a text to the last lines of what went wrong, without the frames of libraries.

    What autoddp says is not cut: stacks of ranks that hang are long.
    """
    kept: list[str] = []
    library = False
    for line in text.rstrip().splitlines():
        if line.startswith("  File "):
            library = any(part in line for part in INSTALLED)
        if not (library and line.startswith("  ")):
            kept.append(line)
    return [line for line in kept[:-TAIL] if line.startswith(PREFIX)] + kept[-TAIL:]


def stop(number: int, frame: FrameType | None) -> NoReturn:
    """Exit at a signal, so that what was begun is put in order; a second one disturbs nothing."""
    for each in STOPS:
        signal.signal(each, signal.SIG_IGN)
    raise SystemExit(128 + number)
