"""Runs are forked from processes that have imported torch: that takes longer than many a script.

One process and ranks import it under other variables, so that each kind has a parent of its own.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autoddp.errors import AutoDDPError
from autoddp.process.boot import BOOT

CHILD = "autoddp.tools.rehearse.child"
ALONE = ("torch", "torch._dynamo")  # the latter is imported by the first optimizer, and takes the longest
RANKS = (*ALONE, "autoddp.launch.agent", "autoddp.process.worker")
PASSING = ("PWD", "OLDPWD", "TMPDIR", "PYTEST_CURRENT_TEST")  # nothing that is imported depends on them
FIXED = {"PYTHONDONTWRITEBYTECODE": "1"}


class Forked:
    """A run that goes on."""

    def __init__(self, answers: Any, pid: int) -> None:
        self.answers, self.pid = answers, pid
        self.code: int | None = None

    def wait(self, seconds: float) -> int | None:
        """Its exit code, negative for a signal; None if it has not ended by then."""
        if self.code is None and select.select([self.answers], [], [], seconds)[0]:
            self.code = int(_line(self.answers))
        return self.code

    def signal(self, number: int) -> None:
        """It may have ended meanwhile."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)


class WarmParent:
    """A process that has imported torch and forks a run whenever it is asked to."""

    def __init__(self, environ: Mapping[str, str], ranks: bool) -> None:
        ours, theirs = socket.socketpair()
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        # Ctrl-C is the run's affair; it waits until this process is deaf to it
        masked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, *flags, BOOT, CHILD, str(theirs.fileno()), str(int(ranks))],
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)
        self.answers = ours.makefile("rwb", buffering=0)
        ours.close()

    def fork(self, task: str, folder: Path, environ: Mapping[str, str], outputs: tuple[Path, Path]) -> Forked:
        """Start a run in `folder`, which prints to `outputs`."""
        asked = [task, str(folder), dict(environ), [str(path) for path in outputs]]
        self.answers.write(json.dumps(asked).encode() + b"\n")
        return Forked(self.answers, int(_line(self.answers)))

    def close(self) -> None:
        """End it; it waits for the run that goes on, if any."""
        self.answers.close()
        self.process.wait()


class Parents:
    """Those that were needed so far, by the variables that they were started with."""

    def __init__(self) -> None:
        self.known: dict[tuple[Any, ...], WarmParent] = {}
        self.temporary = tempfile.mkdtemp(prefix="autoddp-")  # what torch's compiler makes when imported

    def of(self, ranks: bool, environ: Mapping[str, str]) -> WarmParent:
        """The one for such runs, started if there is none yet."""
        asked = settled(environ) | FIXED
        key = ranks, *sorted(item for item in asked.items() if item[0] not in PASSING)
        if key not in self.known:
            self.known[key] = WarmParent(asked | {"TMPDIR": self.temporary}, ranks)
        return self.known[key]

    def close(self) -> None:
        """End all of them."""
        for parent in self.known.values():
            parent.answers.close()  # none shall begin what was asked for while it was importing
        while self.known:
            self.known.popitem()[1].close()
        shutil.rmtree(self.temporary, ignore_errors=True)


def settled(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment, with one order of sets in all runs, and folders that mean the same in a copy."""
    found = dict(environ)
    if found.get("PYTHONHASHSEED", "random") in ("", "random"):
        found["PYTHONHASHSEED"] = "0"
    if "PYTHONPATH" in found:
        found["PYTHONPATH"] = os.pathsep.join(map(_lasting, found["PYTHONPATH"].split(os.pathsep)))
    return found


def _lasting(path: str) -> str:
    """A folder outside of this one, by its whole path: a run starts in a copy that lies elsewhere."""
    outside = os.path.relpath(path or ".").startswith(os.pardir)
    return os.path.abspath(path) if outside else path


def _line(answers: Any) -> bytes:
    line: bytes = answers.readline()
    if not line:
        raise AutoDDPError("the process that runs were to be forked from has ended; what it said is above")
    return line


def serve(fd: int, ranks: bool) -> str:
    """Fork a run for each line that comes; returns in the forks alone, with the task."""
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    for name in RANKS if ranks else ALONE:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what is there now would be copied, page by page, whenever a fork looks for garbage
    answers = os.fdopen(fd, "r+b", buffering=0)
    while (line := answers.readline()) and not _is_left(fd):
        pid = os.fork()
        if pid == 0:
            answers.close()
            signal.signal(signal.SIGINT, interrupt)
            return become(*json.loads(line))
        answers.write(f"{pid}\n".encode())
        answers.write(f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n".encode())
    os._exit(0)


def _is_left(fd: int) -> bool:
    """Whether who asked was stopped while this process was still importing."""
    poller = select.poll()
    poller.register(fd, 0)
    return bool(poller.poll(0))


def become(task: str, folder: str, environ: dict[str, str], outputs: list[str]) -> str:
    """In the fork: the place, the variables and the outputs of a run."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)
    tempfile.tempdir = None
    for target, path in zip((1, 2), outputs, strict=True):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(opened, target)
        os.close(opened)
    return task
