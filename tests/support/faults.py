"""The faults that a job may meet, the phases it may meet them in, and what is demanded of its end.

Jobs are forks of a process that has imported torch (see warm.py), each in a session, a folder and a
temporary folder of its own, so that what it leaves is found.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support import warm
from tests.support.cli import start_cli

SCRIPT = Path(__file__).with_name("faulty.py")
# where a real limit of memory can be set, in containers of cgroup v1
GROUPS = Path("/sys/fs/cgroup/memory")
LIMIT = 96 << 20
STARTS = "start"  # struck from outside, while the ranks meet
PHASES = (
    STARTS,
    "forward",
    "loading",
    "worker",
    "collective",
    "save",
    "evaluation",
    "teardown",
    "end",
)
SIGNALS = ("int-launcher", "int-group", "term-launcher", "term-group")
DEATHS = ("kill-first", "kill-last", "kill-launcher", "segv", "oom", "exit")
RAISES = ("raise-first", "raise-last")
CACHE = f"torchinductor_{getpass.getuser()}"  # torch's own, which python leaves, too
# A loader whose process has ended opens a file, to see whether it can; the signal of that end may
# come between the file's making and its removal, under plain python, too.
TRIAL = re.compile(r"tmp[a-z0-9_]{8}")
SOON = 30.0  # seconds from the fault to the end; 10 are promised, and this machine may be busy
LATEST = 60.0  # seconds that a job may take, a fault included


@dataclass(frozen=True)
class Case:
    """A fault in a phase."""

    phase: str
    fault: str
    ranks: int = 2
    options: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "-".join(
            [self.phase, self.fault, *(["3"] if self.ranks == 3 else []), *self.options]
        )

    @property
    def victim(self) -> int:
        """The rank that meets its end."""
        return 0 if self.fault.endswith("first") else self.ranks - 1


def cases() -> Iterator[Case]:
    """Every fault in every phase in which it can be."""
    for phase in PHASES:
        for fault in (*SIGNALS, *DEATHS, *RAISES):
            outside = fault in SIGNALS or fault.startswith("kill")
            # only rank 0 writes a checkpoint; what a thread raises, ends no process
            writes = fault in SIGNALS or fault in ("kill-first", "kill-launcher")
            if (phase != STARTS or outside) and (phase != "save" or writes):
                yield Case(phase, fault)
    yield Case("sample", "sample")
    yield Case("sample", "sample", 3)
    yield Case("sample", "sample", options=("--loading", "each"))
    yield Case("thread", "raise-first")
    for fault in ("kill-first", "kill-last"):
        yield Case("loading", fault, 3)


@dataclass(frozen=True)
class Ended:
    """What came of a job."""

    code: int | None  # none: it hung
    seconds: float | None  # from the fault to the end; none: it did not come to the fault
    out: str
    err: str
    left: tuple[str, ...]  # processes that outlived it
    files: tuple[str, ...]  # in its temporary folder
    folder: Path

    @property
    def first(self) -> str:
        """The first line that tells of the fault."""
        lines = [line for line in self.err.splitlines() if line.strip()]
        said = [
            line for line in lines if re.match(r"(?!\[autoddp\])|\[autoddp\] (rank|node) \d", line)
        ]
        return said[0] if said else ""


class Laboratory:
    """Runs cases, one after the other."""

    def __init__(self) -> None:
        with memory(LIMIT) as group:
            self.limits = bool(group)

    def run(self, case: Case, folder: Path) -> Ended:
        """The job, in a new folder, and what it has left there."""
        folder.mkdir()
        tmp = Path(tempfile.mkdtemp(prefix="autoddp-"))  # a short path: sockets lie in it
        with memory(LIMIT) as group:
            job = start_cli(
                *("run", "-n", case.ranks, *case.options),
                *(SCRIPT, case.phase, case.fault, group),
                folder=folder,
                env={"TMPDIR": str(tmp)},
            )
            if case.phase == STARTS:
                strike(job.pid, case.fault, folder)
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.wait(LATEST)
            end, left = time.time(), warm.leftover(job.pid)
        out, err = (log.read_text() for log in job.logs)
        mark = folder / "fault"
        seconds = end - mark.stat().st_ctime if mark.exists() else None
        files = tuple(str(path) for path in tmp.rglob("*") if path.name != CACHE)
        shutil.rmtree(tmp)
        return Ended(job.returncode, seconds, out, err, tuple(left), files, folder)


@contextlib.contextmanager
def memory(limit: int) -> Iterator[str]:
    """A control group whose processes have so much memory in all; empty where none can be made."""
    try:
        group = Path(tempfile.mkdtemp(prefix="autoddp-", dir=GROUPS))
        (group / "memory.limit_in_bytes").write_text(str(limit))
    except OSError:
        yield ""
        return
    try:
        yield str(group)
    finally:
        deadline = time.monotonic() + 10
        while group.exists() and time.monotonic() < deadline:
            with contextlib.suppress(OSError):  # the killed process is still about to leave it
                group.rmdir()


# ---- what is demanded


def codes_of(case: Case) -> tuple[int, ...]:
    """Of the command."""
    if case.fault in RAISES or case.fault == "sample":
        return (0,) if case.phase in ("thread", "teardown") else (1,)
    if case.fault == "kill-launcher":
        return (-signal.SIGKILL,)
    if case.fault in DEATHS and case.phase == "worker":
        return (1,)  # the loader tells of its process's end
    number = {"int": 2, "term": 15, "kill": 9, "oom": 9, "segv": 11}.get(
        case.fault.partition("-")[0]
    )
    code = 7 if number is None else 128 + number
    # python goes on after what an atexit function raises, be it a KeyboardInterrupt; and a script
    # that ends within a second may do so before its ranks have agreed on where to act on it
    return (0, code) if case.phase in ("teardown", "end") and number == signal.SIGINT else (code,)


def told_of(case: Case) -> list[str]:
    """What stands in the errors, once."""
    rank = f"[autoddp] rank {case.victim} "
    if case.fault in SIGNALS or case.fault == "kill-launcher":
        return []
    if case.phase == "worker" and case.fault in DEATHS:
        return []  # the loader's own words, which differ by what it finds first
    if case.fault in DEATHS:
        return [rank + ("ended with exit code 7" if case.fault == "exit" else "was killed by SIG")]
    if case.phase == "teardown" and case.victim:
        return []  # the job went well, and this rank's log with it
    shown = ["ValueError: the fault\n"]
    # a data set that draws is loaded for all, and fails so
    alone = case.victim and case.fault != "sample"
    return [rank + "ended with exit code 1; the end of its log", *shown] if alone else shown


def wrong(case: Case, ended: Ended) -> list[str]:
    """What is not as promised."""
    found = []

    def demand(held: bool, words: str) -> None:
        if not held:
            found.append(words)

    demand(ended.code in codes_of(case), f"exit code {ended.code}, not {codes_of(case)}")
    if case.phase == "worker" and case.fault in DEATHS and case.fault != "kill-launcher":
        # torch raises what it meets first: word of the worker's death, or the end of its sockets
        said = ("RuntimeError: DataLoader worker (pid", "ConnectionResetError: ", "EOFError")
        demand(any(words in ended.err for words in said), "the loader's error is not shown")
    demand(ended.seconds is not None, "it did not come to the fault")
    demand((ended.seconds or 0) < SOON, f"it ended after {ended.seconds} s")
    demand(not ended.left, f"left processes: {ended.left}")
    for words in told_of(case):
        demand(
            ended.err.count(words) == 1, f"{words!r} stands there {ended.err.count(words)} times"
        )
    for frames in ("torch/distributed/elastic", "autoddp/launch/", "/gloo/", "RankEnded"):
        demand(frames not in ended.err, f"{frames} is shown")
    named = [file for file in ended.files if f"{file}:" in ended.err]
    folders = {str(Path(file).parent) for file in named}  # with the logs of all ranks of the node
    kept = {*folders, *(file for file in ended.files if str(Path(file).parent) in folders)}
    if case.fault != "kill-launcher":  # nobody is left to tidy up
        left = {file for file in ended.files if file not in kept and not _trial(case, file)}
        demand(not left, f"left files: {left}")
        there = {path.name for path in ended.folder.iterdir()}
        demand(there <= {"fault", "ckpt.pt"}, f"beside the checkpoint: {there}")
    if case.phase != STARTS:
        demand(
            version(ended.folder / "ckpt.pt") in (0, 1),
            "the checkpoint is neither the old nor the new",
        )
    return found


def _trial(case: Case, file: str) -> bool:
    """Return whether the loader itself made a file of this name to see what has failed."""
    return case.phase == "worker" and TRIAL.fullmatch(Path(file).name) is not None


def version(path: Path) -> int:
    """Of a whole checkpoint."""
    import torch

    state = torch.load(path, mmap=True)
    number = int(state["version"])
    return number if bool((state["big"] == number).all()) else -1


def strike(pid: int, fault: str, folder: Path) -> None:
    """A fault from outside, as soon as all ranks are forked."""
    deadline = time.monotonic() + LATEST
    ranks: list[str] = []
    while len(ranks) < 2:
        assert time.monotonic() < deadline, "the ranks do not start"
        ranks = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    (folder / "fault").mkdir()
    number = {"int": signal.SIGINT, "term": signal.SIGTERM}.get(
        fault.partition("-")[0], signal.SIGKILL
    )
    if fault.endswith("group"):
        os.killpg(pid, number)
    else:
        os.kill({"kill-first": int(ranks[0]), "kill-last": int(ranks[-1])}.get(fault, pid), number)
