"""Start a run in a private copy of the folder, follow it, and collect what it left."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any, NoReturn

from autoddp import launch
from autoddp.comm.world import ADDED
from autoddp.errors import BadInput
from autoddp.options import Options
from autoddp.process import own_ddp
from autoddp.process.script import Script
from autoddp.process.source import SourceFacts
from autoddp.tools.rehearse.backup import put_back
from autoddp.tools.rehearse.parents import FIXED, Forked, Parents, WarmParent, settled
from autoddp.tools.rehearse.sandbox import copy_folder
from autoddp.tools.rehearse.task import RunTask

NOTHING: Mapping[str, Any] = MappingProxyType({})
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

    def forget(self) -> None:
        """What it left is not needed any more, and may be large."""
        shutil.rmtree(self.folder.parent, ignore_errors=True)

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
    recorder: str  # see `RunTask`
    follow: Callable[[str, int], None] = lambda name, steps: None
    root: Path = field(default_factory=lambda: Path(os.path.realpath(tempfile.mkdtemp(prefix="autoddp-"))))
    parents: Parents = field(default_factory=Parents)

    def run(
        self,
        name: str,
        options: Options,
        *,
        steps: int | None = None,
        settings: Mapping[str, Any] = NOTHING,
        environ: Mapping[str, str] = NOTHING,
    ) -> Left:
        """Run it.

        Args:
            name: What it is called.
            options: On how many ranks, and how.
            steps: After how many it ends, if fewer than all.
            settings: The recorder's own.
            environ: What its variables differ by.
        """
        assert options.nproc is not None
        results, work = self._results(), self._copy()
        for folder in (results, results / "records", results / "kept"):
            folder.mkdir()
        report = str(results / "report.json") if options.nproc * options.nnodes > 1 else None
        task = RunTask(
            self._script(work),
            self.script.args,
            self.script.module,
            replace(options, report=report).to_json(),
            str(self.root),
            str(results / "records"),
            str(results / "kept"),
            self.recorder,
            steps,
            dict(settings),
        )
        (results / "task.json").write_text(task.to_json())
        started = time.monotonic()
        try:
            code = self._follow(name, results, work, task, environ)
        finally:
            seconds = time.monotonic() - started
            put_back(results / "kept", results / "outside")
            self._keep(work, results)
        return collect(name, results, code, seconds)

    def close(self) -> None:
        """Leave nothing behind."""
        shutil.rmtree(self.root, ignore_errors=True)

    def _results(self) -> Path:
        """Where the next run's results shall be."""
        return self.root / str(len(os.listdir(self.root)))

    def _copy(self) -> Path:
        """A copy of this folder, in which a run starts, and a folder for temporary files."""
        (self.root / "tmp").mkdir()
        work = self.root / "folder"
        copy_folder(Path.cwd(), work, self.root)
        return work

    def _keep(self, work: Path, results: Path) -> None:
        """What the run has made of it."""
        shutil.rmtree(self.root / "tmp", ignore_errors=True)
        work.rename(results / "folder")

    def _script(self, work: Path) -> str:
        """The script's name in the copy; one that lies elsewhere by its whole path."""
        if self.script.module:
            return self.script.name
        path, here = os.path.abspath(self.script.name), os.getcwd() + "/"
        if not path.startswith(here):
            return path
        return str(work / path.removeprefix(here)) if os.path.isabs(self.script.name) else self.script.name

    def _follow(self, name: str, results: Path, work: Path, task: RunTask, more: Mapping[str, str]) -> int:
        """Its exit code, as the shell knows it."""
        options = Options.from_json(task.options)
        assert options.nproc is not None
        environ = settled(os.environ) | FIXED | dict(more) | {"TMPDIR": str(self.root / "tmp")}
        seen = LineCount(results / "records" / "0.jsonl")
        forked = self.parent(options.nproc, options.nnodes).fork(
            str(results / "task.json"), work, environ, (results / "out", results / "err")
        )
        try:
            while (code := forked.wait(TICK)) is None:
                self._look(name, seen.count())
            self.follow(name, seen.count())
        finally:
            end(forked)
        return code

    def _look(self, name: str, steps: int) -> None:
        """At a run that goes on."""
        self.follow(name, steps)

    def parent(self, nproc: int, nnodes: int = 1) -> WarmParent:
        """The process that such a run is forked from; started now if it is not there yet."""
        ranks = nproc * nnodes > 1
        threads = {"OMP_NUM_THREADS": launch.threads(nproc)} if ranks else {}
        return self.parents.of(ranks, threads | dict(os.environ))


def end(forked: Forked) -> None:
    """Of a run that goes on, as somebody has stopped us."""
    if forked.code is not None:
        return
    forked.signal(signal.SIGTERM)
    if forked.wait(GRACE) is None:
        forked.signal(signal.SIGKILL)
        forked.wait(GRACE)


class LineCount:
    """How many lines a file that grows has by now."""

    def __init__(self, path: Path) -> None:
        self.path, self.read, self.lines = path, 0, 0

    def count(self) -> int:
        """None, if there is no such file yet."""
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self.read)
                new = file.read()
            self.read += len(new)
            self.lines += new.count(b"\n")
        return self.lines


def check(script: Script, options: Options, command: str) -> None:
    """Check that the script can be run so, on one process and on ranks.

    Raises:
        BadInput: It cannot.
    """
    script.find()
    launch.check_disabled(options)
    outside_of_a_job(command)
    own = own_ddp.of(SourceFacts() if options.own_ddp == "no" else script.read(), options.own_ddp)
    if own.kind is not own_ddp.Kind.VIEW:
        raise BadInput(
            f"{script.name} is distributed by itself ({own.line or '--own-ddp yes'}): autoddp run is its "
            f"launcher, and there is nothing of ours to {command} (--own-ddp no changes that)"
        )


def outside_of_a_job(command: str) -> None:
    """Check that no launcher has started us.

    Raises:
        BadInput: One has.
    """
    if "RANK" in os.environ or "WORLD_SIZE" in os.environ:
        names = ", ".join(name for name in ADDED if name in os.environ)
        raise BadInput(
            f"{names} are set: autoddp {command} starts ranks by itself; run it without a launcher"
        )


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


@contextmanager
def enough_room(folder: Path) -> Iterator[None]:
    """A disk that is full is said in one line.

    Raises:
        BadInput: It is.
    """
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise BadInput(
            f"{folder} is full: each run has a copy of this folder there, and writes there; "
            "set TMPDIR to a folder with more room"
        ) from None


@contextmanager
def stoppable() -> Iterator[None]:
    """A signal ends the run that goes on, and everything is put back as it was."""
    before = {number: signal.signal(number, stop) for number in STOPS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
