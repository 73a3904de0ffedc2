"""Start a run in a private copy of the folder, follow it, and collect what it left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from autoddp.environment import ADDED
from autoddp.errors import BadInput
from autoddp.options import Options
from autoddp.script import Script
from autoddp.verifying.kept import put_back
from autoddp.verifying.sandbox import copy_folder
from autoddp.verifying.task import Task

PACKAGES = str(Path(__file__).parents[2])  # the folder that holds autoddp
START = "import sys; sys.path.append({!r}); from autoddp.verifying.child import main; main()"
TICK = 0.1  # seconds between two looks at a run
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACE = 40  # seconds that a run has to end in after it was told to


@dataclass(frozen=True)
class Left:
    """What a run left: its exit code, what it printed, its folder, what was recorded on each rank."""

    name: str
    code: int
    out: str
    err: str
    folder: Path
    outside: Path  # what it wrote elsewhere, below its absolute path
    steps: dict[int, list[dict[str, Any]]]
    ends: dict[int, dict[str, Any]]
    decisions: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def raised(self) -> bool:
        """Whether the script ended in an exception."""
        return self.code != 0 and any(end.get("raised") for end in self.ends.values())


@dataclass
class Runner:
    """Runs of one script, one after the other, each where the one before was.

    The paths are the same in all of them, so that what is printed of them is, too.
    """

    script: Script
    options: Options
    steps: int | None
    follow: Callable[[str, int], None] = lambda name, steps: None
    root: Path = field(default_factory=lambda: Path(os.path.realpath(tempfile.mkdtemp(prefix="autoddp-"))))
    recording: bool = True

    def run(
        self, name: str, nproc: int, *, float64: bool = False, steps: int | None = None, **more: Any
    ) -> Left:
        """Run it on `nproc` ranks.

        Args:
            name: What it is called, and its results' folder.
            nproc: How many ranks.
            float64: Whether in float64.
            steps: After how many it ends, if fewer than all.
            more: `environ`, variables; `disable`, features to leave out.
        """
        results = self.root / name
        for folder in (results, results / "records", results / "kept", self.root / "tmp"):
            folder.mkdir()
        work = self.root / "folder"
        copy_folder(Path.cwd(), work, self.root)
        report = str(results / "report.json") if nproc > 1 else None
        disable = (*self.options.disable, *more.get("disable", ()))
        options = replace(self.options, nproc=nproc, report=report, disable=disable)
        task = Task(
            self._script(work),
            self.script.args,
            self.script.module,
            options.to_json(),
            str(self.root),
            str(results / "records"),
            str(results / "kept"),
            steps or self.steps,
            float64,
            self.recording,
        )
        (results / "task.json").write_text(task.to_json())
        started = time.monotonic()
        try:
            code = self._follow(name, results, work, more.get("environ", {}))
        finally:
            seconds = time.monotonic() - started
            put_back(results / "kept", results / "outside")
            shutil.rmtree(self.root / "tmp", ignore_errors=True)
            work.rename(results / "folder")
        return collect(name, results, code, seconds)

    def close(self) -> None:
        """Leave nothing behind."""
        shutil.rmtree(self.root, ignore_errors=True)

    def _script(self, work: Path) -> str:
        """The script's name in the copy; one that lies elsewhere by its whole path."""
        if self.script.module:
            return self.script.name
        path, here = os.path.abspath(self.script.name), os.getcwd() + "/"
        if not path.startswith(here):
            return path
        return str(work / path.removeprefix(here)) if os.path.isabs(self.script.name) else self.script.name

    def _follow(self, name: str, results: Path, work: Path, environ: Mapping[str, str]) -> int:
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        command = [sys.executable, *flags, "-c", START.format(PACKAGES), str(results / "task.json")]
        with open(results / "out", "wb") as out, open(results / "err", "wb") as err:
            process = subprocess.Popen(
                command,
                cwd=work,
                env=variables(self.root / "tmp") | dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )
            try:
                while True:
                    try:
                        return process.wait(TICK)
                    except subprocess.TimeoutExpired:
                        self.follow(name, count(results / "records" / "0.jsonl"))
            finally:
                end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """Of a run that goes on, as somebody has stopped us."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def variables(temporary: Path) -> dict[str, str]:
    """The environment of a run: same order of sets, temporary files of its own, no caches of code."""
    found = dict(os.environ)
    if found.get("PYTHONHASHSEED", "random") in ("", "random"):
        found["PYTHONHASHSEED"] = "0"
    return found | {"TMPDIR": str(temporary), "PYTHONDONTWRITEBYTECODE": "1"}


def outside_of_a_job() -> None:
    """Check that no launcher has started us.

    Raises:
        BadInput: One has.
    """
    if "RANK" in os.environ or "WORLD_SIZE" in os.environ:
        names = ", ".join(name for name in ADDED if name in os.environ)
        raise BadInput(f"{names} are set: autoddp verify starts ranks by itself; run it without a launcher")


def count(records: Path) -> int:
    """How many steps were recorded so far."""
    return records.read_bytes().count(b"\n") if records.exists() else 0


def collect(name: str, results: Path, code: int, seconds: float) -> Left:
    """What is in the folder of results."""
    steps: dict[int, list[dict[str, Any]]] = {}
    ends: dict[int, dict[str, Any]] = {}
    for path in sorted((results / "records").glob("*.jsonl")):
        # a run that was killed may have left half a line
        lines = [json.loads(line) for line in path.read_text().split("\n")[:-1]]
        steps[int(path.stem)] = [line for line in lines if "step" in line]
        ends[int(path.stem)] = next((line for line in lines if "ended" in line), {})
    report = results / "report.json"
    out, err = ((results / name).read_text(errors="replace") for name in ("out", "err"))
    decisions = json.loads(report.read_text()) if report.exists() and report.stat().st_size else []
    return Left(
        *(name, code, out, err, results / "folder", results / "outside", steps, ends), decisions, seconds
    )


def stop(number: int, frame: FrameType | None) -> NoReturn:
    """A signal's handler: what was begun is put in order on the way out; a second signal disturbs nothing."""
    for each in STOPS:
        signal.signal(each, signal.SIG_IGN)
    raise SystemExit(128 + number)
