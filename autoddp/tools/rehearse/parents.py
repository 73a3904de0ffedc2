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
# The first optimizer imports torch._dynamo, which takes the longest.
ALONE = ("torch", "torch._dynamo")
RANKS = (*ALONE, "autoddp.launch.agent", "autoddp.process.worker")
# Variables on which nothing that is imported depends.
PASSING = ("PWD", "OLDPWD", "TMPDIR", "PYTEST_CURRENT_TEST")
FIXED = {"PYTHONDONTWRITEBYTECODE": "1"}


class Forked:
    """A run that was forked from a warm parent."""

    def __init__(self, answers: Any, pid: int) -> None:
        self.answers, self.pid = answers, pid
        self.code: int | None = None

    def wait(self, seconds: float) -> int | None:
        """Wait up to `seconds` for the exit code, negative for a signal; None if still running."""
        if self.code is None and select.select([self.answers], [], [], seconds)[0]:
            self.code = int(_line(self.answers))
        return self.code

    def signal(self, number: int) -> None:
        """Send a signal to the run, which may have ended meanwhile."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)


class WarmParent:
    """A process that has imported torch and forks a run whenever it is asked to."""

    def __init__(self, environ: Mapping[str, str], ranks: bool) -> None:
        ours, theirs = socket.socketpair()
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        # Ctrl-C is for the run to handle; it is held back until the new process ignores it
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

    def fork(
        self, task: str, folder: Path, environ: Mapping[str, str], outputs: tuple[Path, Path]
    ) -> Forked:
        """Start a run in `folder`; its stdout and stderr go to the two files `outputs`."""
        asked = [task, str(folder), dict(environ), [str(path) for path in outputs]]
        self.answers.write(json.dumps(asked).encode() + b"\n")
        return Forked(self.answers, int(_line(self.answers)))

    def close(self) -> None:
        """End the process, after the run that goes on, if any."""
        self.answers.close()
        self.process.wait()


class Parents:
    """The warm parents that were needed so far, by the variables that they were started with."""

    def __init__(self) -> None:
        self.known: dict[tuple[Any, ...], WarmParent] = {}
        # for what torch's compiler makes when it is imported
        self.temporary = tempfile.mkdtemp(prefix="autoddp-")

    def of(self, ranks: bool, environ: Mapping[str, str]) -> WarmParent:
        """Return the warm parent for such runs, started now if there is none yet."""
        asked = settled(environ) | FIXED
        key = ranks, *sorted(item for item in asked.items() if item[0] not in PASSING)
        if key not in self.known:
            self.known[key] = WarmParent(asked | {"TMPDIR": self.temporary}, ranks)
        return self.known[key]

    def close(self) -> None:
        """End all parents, and remove their temporary folder."""
        for parent in self.known.values():
            # no parent shall begin a run that was asked for while it was importing
            parent.answers.close()
        while self.known:
            self.known.popitem()[1].close()
        shutil.rmtree(self.temporary, ignore_errors=True)


def settled(environ: Mapping[str, str]) -> dict[str, str]:
    """Copy the environment, with one order of sets in all runs.

    Folders of PYTHONPATH are named so that they mean the same in a copy of this folder.
    """
    found = dict(environ)
    if found.get("PYTHONHASHSEED", "random") in ("", "random"):
        found["PYTHONHASHSEED"] = "0"
    if "PYTHONPATH" in found:
        found["PYTHONPATH"] = os.pathsep.join(map(_lasting, found["PYTHONPATH"].split(os.pathsep)))
    return found


def _lasting(path: str) -> str:
    """Name a folder outside of this one by its whole path.

    A run starts in a copy that lies elsewhere.
    """
    outside = os.path.relpath(path or ".").startswith(os.pardir)
    return os.path.abspath(path) if outside else path


def _line(answers: Any) -> bytes:
    line: bytes = answers.readline()
    if not line:
        raise AutoDDPError(
            "the process that runs were to be forked from has ended; what it said is above"
        )
    return line


def serve(fd: int, ranks: bool) -> str:
    """Fork a run for each line that comes; return in the forks alone, with the path of the task."""
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    for name in RANKS if ranks else ALONE:
        importlib.import_module(name)
    gc.collect()
    # else what is there now would be copied, page by page, whenever a fork looks for garbage
    gc.freeze()
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
    """Return whether the process that asked was stopped while this one was still importing."""
    poller = select.poll()
    poller.register(fd, 0)
    return bool(poller.poll(0))


def become(task: str, folder: str, environ: dict[str, str], outputs: list[str]) -> str:
    """Give a fork the folder, variables and outputs of its run; return the path of its task."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)
    tempfile.tempdir = None
    for target, path in zip((1, 2), outputs, strict=True):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(opened, target)
        os.close(opened)
    return task
