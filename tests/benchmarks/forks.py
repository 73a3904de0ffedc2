"""Commands as forks of one process with torch, that may be looked at while they run: see tests/warm.py."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.warm import LIBRARIES, PLAIN_ENV, ROOT, _child

OURS = ("autoddp.cli", "autoddp.launch", "autoddp.launching.agent", "autoddp.worker")


class Forks:
    """The parent of the commands."""

    def __init__(self) -> None:
        self.server = subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.forks"],
            cwd=ROOT,
            env=os.environ | PLAIN_ENV,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self, argv: list[str], folder: Path, logs: list[Path], env: dict[str, str]) -> Fork:
        """`python SCRIPT ...` or `autoddp run ...` in a session of its own."""
        return Fork(self, self._ask("start", argv, str(folder), [str(log) for log in logs], env))

    def _ask(self, *line: object) -> object:
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        print(json.dumps(line), file=self.server.stdin, flush=True)
        return json.loads(self.server.stdout.readline())


class Fork:
    """As a Popen."""

    def __init__(self, forks: Forks, pid: object) -> None:
        assert isinstance(pid, int)
        self.forks, self.pid = forks, pid

    def wait(self, limit: float = 60.0) -> int:
        """Its exit code.

        Raises:
            TimeoutExpired: It has not ended by then, and goes on.
        """
        code = self.forks._ask("wait", self.pid, limit)
        if not isinstance(code, int):
            raise subprocess.TimeoutExpired(str(self.pid), limit)
        return code


def wait(pid: int, limit: float) -> int | None:
    """The exit code; None where it has not ended by then."""
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    return None


def serve() -> None:
    """Answer lines of JSON."""
    for name in (*LIBRARIES, *OURS):
        importlib.import_module(name)
    answers, ended = os.fdopen(os.dup(1), "w"), {}
    for line in sys.stdin:
        what, *told = json.loads(line)
        if what == "start":
            argv, folder, logs, env = told
            answer = os.fork()
            if answer == 0:
                answers.close()
                os.environ.clear()
                os.environ.update(env)
                tempfile.tempdir = None
                _child(argv, folder, logs, "")
        else:
            pid, limit = told
            answer = ended[pid] = wait(pid, limit) if ended.get(pid) is None else ended[pid]
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    serve()
