"""Runs `python script.py` and `autoddp run ... script.py` in forks of one process with torch.

A fresh interpreter needs two seconds to import torch, a fork three hundredths; a command's child
goes through the same entry point, in a session of its own, so that whatever it leaves is found.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PLAIN_ENV = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "MPLBACKEND": "agg"}
PLAIN_ENV["AUTODDP_PLACEMENT"] = "sharded"  # what is tested, unless a test says otherwise
PLAIN_ENV["PYTHONFAULTHANDLER"] = ""  # a job that meets SIGSEGV says what it says to its user
LIBRARIES = ("torch._dynamo", "torchvision.datasets", "sklearn.metrics", "matplotlib.pyplot")
CLONE_NEWNET = 0x40000000  # of Linux' <sched.h>
GRACE = 6  # seconds in which what a command started may go away; a loader's worker looks every 5


@dataclass(frozen=True)
class Run:
    """What a command left: its exit code, what it wrote to the terminal, its folder."""

    code: int
    out: str
    err: str
    folder: Path
    left: tuple[str, ...] = ()  # processes that outlived it


class Fork:
    """A command that runs; as a `Popen`."""

    def __init__(self, warm: Warm, pid: int, logs: Sequence[Path]) -> None:
        self.warm, self.pid, self.logs = warm, pid, logs
        self.returncode: int | None = None

    def wait(self, timeout: float = 120.0) -> int:
        """Its exit code.

        Raises:
            TimeoutExpired: It has not ended by then, and goes on.
        """
        if self.returncode is None:
            self.returncode = self.warm.ask("wait", self.pid, timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        return self.returncode

    def poll(self) -> int | None:
        """Its exit code, or None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def until(self, text: str, times: int = 1, timeout: float = 100.0) -> str:
        """Wait until it has written `text` so often; return all that it has written by then."""
        deadline = time.monotonic() + timeout
        while True:
            ended = self.poll() is not None or time.monotonic() > deadline
            seen = "".join(log.read_text() for log in self.logs if log.exists())
            if seen.count(text) >= times:
                return seen
            assert not ended, f"no {text!r}, exit code {self.returncode}: {seen}"
            time.sleep(0.02)

    def communicate(self, timeout: float = 120.0) -> list[str]:
        """What it has written when it has ended."""
        self.wait(timeout)
        return [log.read_text() for log in self.logs]

    def kill(self) -> None:
        """End it, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


class Warm:
    """The parent of the commands; `run` is to it what `subprocess.run` is to the shell."""

    def __init__(
        self, module: str = "tests.support.warm", env: Mapping[str, str] | None = None
    ) -> None:
        self.command, self.env = [sys.executable, "-m", module], dict(env or {})
        self.server = self._serve()

    def _serve(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command,
            cwd=ROOT,
            env=os.environ | PLAIN_ENV | self.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(
        self,
        *argv: str,
        folder: Path,
        logs: Sequence[Path],
        env: Mapping[str, str] | None = None,
        stdin: Path | None = None,
        mirror: str = "",
        network: str = "",
    ) -> Fork:
        """Start `python SCRIPT ...` or `autoddp run ...` with `folder` as its working directory.

        It writes to two `logs`. With `env` these are all its variables, with `mirror` torchvision
        downloads from there (see archives.py), with `network` it is in that network namespace.
        """
        streams = [str(stdin or os.devnull), *map(str, logs)]
        order = ("start", argv, str(folder), streams, env and dict(env), mirror, network)
        return Fork(self, self.ask(*order), logs)

    def run(
        self,
        *argv: str,
        folder: Path,
        timeout: float = 120,
        mirror: str = "",
        env: Mapping[str, str] | None = None,
    ) -> Run:
        """Run a command to its end; with `env` these are all its variables."""
        folder.mkdir(parents=True, exist_ok=True)
        logs = [folder.parent / f"{folder.name}.{name}" for name in ("out", "err")]
        fork = self.start(*argv, folder=folder, logs=logs, mirror=mirror, env=env)
        try:
            out, err = fork.communicate(timeout)
        except subprocess.TimeoutExpired:
            fork.kill()
            out, err = fork.communicate()
            raise AssertionError(f"{' '.join(argv)} hangs\n{out}\n{err}") from None
        finally:
            left = leftover(fork.pid)
        return Run(fork.wait(), out, err, folder, tuple(left))

    def ask(self, *line: object) -> Any:
        """What the parent answers; a test that ran out of time while it waited needs a new one."""
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        try:
            print(json.dumps(line), file=self.server.stdin, flush=True)
            return json.loads(self.server.stdout.readline())
        except BaseException:  # else each later question would get the answer to the one before it
            self.close()
            self.server = self._serve()
            raise

    def close(self) -> None:
        """End the parent: it has nothing to lose."""
        self.server.kill()
        self.server.communicate()


@functools.cache
def shared() -> Warm:
    """One parent for all tests of this process."""
    parent, mine = Warm(), os.getpid()
    atexit.register(lambda: parent.close() if os.getpid() == mine else None)  # forks of it end, too
    return parent


def fresh(*argv: str, folder: Path, timeout: float = 240) -> Run:
    """The same by a new interpreter, as a user's shell does it."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, *(["-m", *argv] if argv[0] == "autoddp" else argv[1:])]
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | PLAIN_ENV | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    return Run(done.returncode, done.stdout, done.stderr, folder)


def _python(argv: list[str]) -> None:
    script = argv[0]
    main = types.ModuleType("__main__")
    main.__file__ = script
    sys.modules["__main__"], sys.argv = main, argv
    sys.path[0] = os.path.dirname(script)
    try:
        exec(compile(Path(script).read_text(), script, "exec"), main.__dict__)
    except Exception as error:
        tb = error.__traceback__
        traceback.print_exception(type(error), error, tb and tb.tb_next)  # without this frame
        raise SystemExit(1) from None


def _autoddp(argv: list[str]) -> None:
    from autoddp.cli import main

    sys.argv = ["autoddp", *argv]
    main()


def enter_network(name: str) -> None:
    """Move this thread into a network namespace that `ip netns add` made."""
    with open(f"/run/netns/{name}") as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns to {name}")


def _child(
    argv: list[str],
    folder: str,
    streams: list[str],
    env: dict[str, str] | None,
    mirror: str,
    network: str = "",
) -> None:
    """Be the command, and end as an interpreter ends."""
    import torch

    os.setsid()
    if network:
        enter_network(network)
    os.chdir(folder)
    os.dup2(os.open(streams[0], os.O_RDONLY), 0)
    for target, log in zip((1, 2), streams[1:], strict=True):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), target)
    if env is not None:
        os.environ.clear()
        os.environ.update(env)
        tempfile.tempdir = None
    torch.set_num_threads(1)
    if mirror:
        from tests.support.archives import point_torchvision

        point_torchvision(mirror)
    code: object = 0
    try:
        {"python": _python, "autoddp": _autoddp}[argv[0]](argv[1:])
    except SystemExit as left:
        code = left.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def _wait(pid: int, timeout: float) -> int | None:
    """The exit code, or None where it has not ended in time."""
    deadline = time.monotonic() + timeout
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            return None
        time.sleep(0.005)


def _session(sid: int) -> dict[int, str]:
    """The live processes of a session, with their names."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
        except (FileNotFoundError, ProcessLookupError):
            continue  # ended while we looked
        state, _, _, session = rest.split()[:4]
        if int(session) == sid and state != "Z":
            found[int(stat.parent.name)] = name
    return found


def leftover(sid: int) -> list[str]:
    """What is still there of a command's session after a while; it is killed."""
    deadline = time.monotonic() + GRACE
    while (there := _session(sid)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in there:
        os.kill(pid, signal.SIGKILL)
    return [f"{pid} ({name})" for pid, name in there.items()]


def serve() -> None:
    """Read JSON lines, what to start and whom to wait for; answer with a number or exit code."""
    for name in (
        *LIBRARIES,
        "autoddp.cli",
        "autoddp.launch",
        "autoddp.launch.agent",
        "autoddp.process.compiler",
        "autoddp.process.worker",
        "encodings.idna",
    ):
        importlib.import_module(name)
    sys.modules["autoddp.cli"].parse(["run", "job.py"])  # typer imports more at its first command

    gc.collect()
    gc.freeze()  # else what is there is copied, page by page, whenever a fork looks for garbage
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        what, *told = json.loads(line)
        if what == "wait":
            answer = _wait(*told)
        else:
            answer = os.fork()
            if answer == 0:
                answers.close()
                _child(*told)
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    serve()
