"""Start a run in a private copy of the folder, follow it, and collect what it left."""

from __future__ import annotations

import errno
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
from typing import NoReturn

from autoddp import launch
from autoddp.comm.world import ADDED
from autoddp.errors import BadInput
from autoddp.launch import cores
from autoddp.options import Options
from autoddp.process import own_ddp
from autoddp.process.script import Script
from autoddp.process.source import SourceFacts
from autoddp.tools.record.recording import REPORT, Recording, decisions, entries
from autoddp.tools.record.settings import RecordSettings
from autoddp.tools.rehearse.backup import put_back, uninterrupted
from autoddp.tools.rehearse.child import SandboxedScript
from autoddp.tools.rehearse.parents import FIXED, Forked, Parents, WarmParent, settled
from autoddp.tools.rehearse.sandbox import copy_folder

NOTHING: Mapping[str, str] = MappingProxyType({})
TICK = 0.1  # seconds between two looks at a run
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACE = 40  # seconds that a run has to end in after it was told to


@dataclass(frozen=True)
class Left(Recording):
    """The remains of a run in a sandbox: its recording, and what it printed and wrote.

    Attributes:
        folder: Its copy of the current folder.
        outside: What it wrote elsewhere, below its absolute path.
    """

    folder: Path = Path()
    outside: Path = Path()

    def forget(self) -> None:
        """Delete what the run left, which may be large, once it is not needed any more."""
        shutil.rmtree(self.folder.parent, ignore_errors=True)


@dataclass
class Runner:
    """Runs of one script, one after the other, each where the one before was.

    The paths are the same in all runs, so that what is printed of them is, too.
    """

    script: Script
    kind: str  # of what is recorded: numbers or times
    follow: Callable[[str, int], None] = lambda name, steps: None
    root: Path = field(
        default_factory=lambda: Path(os.path.realpath(tempfile.mkdtemp(prefix="autoddp-")))
    )
    parents: Parents = field(default_factory=Parents)

    def run(
        self,
        name: str,
        options: Options,
        *,
        steps: int | None = None,
        changes: tuple[str, ...] = (),
        environ: Mapping[str, str] = NOTHING,
    ) -> Left:
        """Run the script once, in a copy of the current folder.

        Args:
            name: The name of the run, as progress shows it.
            options: On how many ranks, and how.
            steps: The number of optimizer steps after which the run ends, if fewer than all.
            changes: What is done in each process before the script, see `SandboxedScript`.
            environ: The environment variables in which the run differs from this process.
        """
        assert options.nproc is not None
        results, work = self._results(), self._copy()
        for folder in (results, results / "records", results / "kept"):
            folder.mkdir()
        report = str(results / REPORT) if options.nproc * options.nnodes > 1 else None
        records = str(results / "records")
        task = SandboxedScript(
            self._script(work),
            self.script.args,
            self.script.module,
            None,
            replace(options, report=report),
            RecordSettings(records, self.kind == "numbers", self.kind == "times", steps),
            root=str(self.root),
            kept=str(results / "kept"),
            changes=changes,
        )
        (results / "task.json").write_text(task.to_json())
        started = time.monotonic()
        try:
            code = self._follow(name, results, work, task, environ)
        finally:
            seconds = time.monotonic() - started
            beside = self.root.parent  # where nothing is deleted when the runs are over
            rescue = beside / "-".join(results.relative_to(beside).parts)
            with uninterrupted(STOPS):
                put_back(results / "kept", results / "outside", rescue)
            self._keep(work, results)
        return collect(name, results, code, seconds)

    def close(self) -> None:
        """Delete the folder that holds all runs."""
        shutil.rmtree(self.root, ignore_errors=True)

    def _results(self) -> Path:
        """Return the path of the next run's results, which is not there yet."""
        return self.root / str(len(os.listdir(self.root)))

    def _copy(self) -> Path:
        """Copy this folder, for a run to start in, and make a folder for temporary files."""
        (self.root / "tmp").mkdir()
        work = self.root / "folder"
        copy_folder(Path.cwd(), work, self.root)
        return work

    def _keep(self, work: Path, results: Path) -> None:
        """Move the run's copy of the folder to `results`, and delete its temporary files."""
        shutil.rmtree(self.root / "tmp", ignore_errors=True)
        work.rename(results / "folder")

    def _script(self, work: Path) -> str:
        """Return the script's name in the copy; one that lies elsewhere by its whole path."""
        if self.script.module:
            return self.script.name
        path, here = os.path.abspath(self.script.name), os.getcwd() + "/"
        if not path.startswith(here):
            return path
        return (
            str(work / path.removeprefix(here))
            if os.path.isabs(self.script.name)
            else self.script.name
        )

    def _follow(
        self, name: str, results: Path, work: Path, task: SandboxedScript, more: Mapping[str, str]
    ) -> int:
        """Fork the run, follow it to its end, and return its exit code, negative for a signal."""
        options = task.options
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
        """Report how many steps a run that goes on has made."""
        self.follow(name, steps)

    def parent(self, nproc: int, nnodes: int = 1) -> WarmParent:
        """Return the process that such a run is forked from, started now if it is not there yet."""
        ranks = nproc * nnodes > 1
        threads = {"OMP_NUM_THREADS": cores.threads(nproc)} if ranks else {}
        return self.parents.of(ranks, threads | dict(os.environ))


def end(forked: Forked) -> None:
    """End a run that goes on when this command is stopped: by SIGTERM, then by SIGKILL."""
    if forked.code is not None:
        return
    forked.signal(signal.SIGTERM)
    if forked.wait(GRACE) is None:
        forked.signal(signal.SIGKILL)
        forked.wait(GRACE)


class LineCount:
    """A count of the lines of a file that grows."""

    def __init__(self, path: Path) -> None:
        self.path, self.read, self.lines = path, 0, 0

    def count(self) -> int:
        """Count the lines that the file has by now, 0 if there is no such file yet."""
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self.read)
                new = file.read()
            self.read += len(new)
            self.lines += new.count(b"\n")
        return self.lines


def check(script: Script, options: Options, command: str) -> None:
    """Check that the script can be run with these options, on one process and on ranks.

    Raises:
        BadInput: The script cannot be run so.
    """
    script.find()
    launch.check_disabled(options)
    outside_of_a_job(command)
    own = own_ddp.of(SourceFacts() if options.own_ddp == "no" else script.read(), options.own_ddp)
    if own.kind is not own_ddp.Kind.VIEW:
        raise BadInput(
            f"{script.name} is distributed by itself ({own.line or '--own-ddp yes'}): autoddp run "
            f"is its launcher, and there is nothing of ours to {command} "
            "(--own-ddp no changes that)"
        )


def outside_of_a_job(command: str) -> None:
    """Check that no launcher has started this process.

    Raises:
        BadInput: A launcher has.
    """
    if "RANK" in os.environ or "WORLD_SIZE" in os.environ:
        names = ", ".join(name for name in ADDED if name in os.environ)
        raise BadInput(
            f"{names} are set: autoddp {command} starts ranks by itself; run it without a launcher"
        )


def collect(name: str, results: Path, code: int, seconds: float) -> Left:
    """Read what a run left in its folder of results."""
    out, err = ((results / name).read_text(errors="replace") for name in ("out", "err"))
    steps, ends = entries(results / "records")
    return Left(
        name,
        code,
        steps,
        ends,
        decisions(results / REPORT),
        seconds,
        out=out,
        err=err,
        folder=results / "folder",
        outside=results / "outside",
    )


def stop(number: int, frame: FrameType | None) -> NoReturn:
    """Exit at a signal, so that what was begun is put in order; a second one disturbs nothing."""
    for each in STOPS:
        signal.signal(each, signal.SIG_IGN)
    raise SystemExit(128 + number)


@contextmanager
def enough_room(folder: Path) -> Iterator[None]:
    """Say in one line that the disk is full.

    Raises:
        BadInput: The disk is full.
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
    """Let a signal end the run that goes on, and everything be put back as it was."""
    before = {number: signal.signal(number, stop) for number in STOPS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
