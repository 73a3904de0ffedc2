"""Runs of one script, each in a copy of the current folder."""

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
from autoddp.errors import BadInput
from autoddp.options import Options
from autoddp.process.boot import BOOT
from autoddp.process.script import Script
from autoddp.report import PREFIX
from autoddp.tools.copies import copy_in_place
from autoddp.tools.record.recording import Recording, read
from autoddp.tools.record.script import Change, RecordedScript, check_own

RECORDED = "autoddp.tools.record.script"
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
TAIL = 30  # the lines of an error that are shown
REAL = "each run has a copy of this folder; files that the script writes elsewhere are real"


@dataclass
class Runner:
    """A runner of one script, one run after the other.

    All runs use the same folder, so that the script sees the same paths.
    """

    script: Script
    numbers: bool  # record the numbers of steps, not their times
    quiet: bool
    root: Path  # the folder for all files of the runs

    @classmethod
    @contextmanager
    def of(cls, script: Script, numbers: bool, quiet: bool) -> Iterator[Runner]:
        """Make a runner; remove the copies at the end, or at a signal."""
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
        changes: tuple[Change, ...] = (),
        environ: Mapping[str, str] | None = None,
    ) -> Recording:
        """Run the script once, in a copy of the current folder.

        Args:
            name: The name of the run, for its line of progress.
            options: The options of `autoddp run`.
            steps: The number of optimizer steps after which the script ends.
            changes: See `RecordedScript`.
            environ: Environment variables to add.
        """
        results = Path(tempfile.mkdtemp(dir=self.root))
        records, temporary, top = results / "records", self.root / "tmp", self.root / "run"
        records.mkdir()
        temporary.mkdir()
        folder, path = Path(os.path.realpath(os.getcwd())), Path(self.script.name)
        copy, options = copy_in_place(folder, top), replace(options, quiet=True)
        task = vars(self.script) | {"options": options, "records": str(records), "steps": steps}
        task |= {"numbers": self.numbers, "changes": changes}
        if not self.script.module and path.is_absolute() and path.is_relative_to(folder):
            task["name"] = str(copy / path.relative_to(folder))
        (results / "task").write_bytes(pickle.dumps(RecordedScript(**task)))
        variables = {"PYTHONHASHSEED": "0"} | os.environ  # the same order of sets in all runs
        variables |= {"TMPDIR": str(temporary), "PYTHONDONTWRITEBYTECODE": "1"}
        started = time.monotonic()
        code = self._start(results, copy, variables | dict(environ or {}))
        seconds = time.monotonic() - started
        copy.chmod(copy.stat().st_mode | 0o700)  # a read-only folder cannot be renamed
        copy.rename(results / "folder")
        for used in (top, temporary):
            shutil.rmtree(used, ignore_errors=True)
        self.say(f"{name}: {seconds:.1f} s")
        # read as bytes, as carriage returns end lines in text mode
        texts = [(results / std).read_bytes().decode(errors="replace") for std in ("out", "err")]
        out, err = (text.replace(str(top), "") for text in texts)  # the original paths
        extra = {"out": out, "err": err, "folder": results / "folder"}
        recording = read(records, name, code=code, seconds=seconds, **extra)
        if not self.numbers:
            shutil.rmtree(results, ignore_errors=True)
        return recording

    def say(self, text: str) -> None:
        """Print a line of progress, unless --quiet."""
        if not self.quiet:
            print(f"{PREFIX} {text}", file=sys.stderr, flush=True)

    def _start(self, results: Path, copy: Path, environ: Mapping[str, str]) -> int:
        """Start the run, wait for it, and return its exit code, negative for a signal.

        If this process ends, the launcher is killed, and then the kernel kills the ranks.
        """
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        command = [sys.executable, *flags, BOOT, RECORDED, str(results / "task")]
        with open(results / "out", "wb") as out, open(results / "err", "wb") as err:
            return subprocess.call(
                command, cwd=copy, env=environ, stdin=subprocess.DEVNULL, stdout=out, stderr=err
            )


def check(script: Script, options: Options, command: str) -> None:
    """Check that the script can be run with these options, on one process and on ranks.

    Raises:
        BadInput: The script cannot be run with them.
    """
    script.find()
    launch.check_disabled(options)
    launch.check_ranks(options.nproc)
    if os.path.realpath(os.getcwd()) == "/":
        raise BadInput(
            f"autoddp {command} runs in copies of the current folder, which is /; change into the "
            "folder of the script"
        )
    if "RANK" in os.environ or "WORLD_SIZE" in os.environ:
        raise BadInput(
            f"RANK or WORLD_SIZE is set by a launcher, but autoddp {command} starts ranks itself"
        )
    check_own(script, options)


def tail(text: str) -> list[str]:
    """Return the last lines of an error output, and all lines of autoddp before them."""
    lines = text.rstrip().splitlines()
    return [line for line in lines[:-TAIL] if line.startswith(PREFIX)] + lines[-TAIL:]


def stop(number: int, frame: FrameType | None) -> NoReturn:
    """Exit at a signal, and ignore further ones while the copies are removed."""
    for stopping in STOPS:
        signal.signal(stopping, signal.SIG_IGN)
    raise SystemExit(128 + number)
