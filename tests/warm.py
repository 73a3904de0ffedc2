"""Runs `python script.py` and `autoddp run ... script.py` in forks of one process with torch.

A fresh interpreter needs two seconds to import torch, a fork three hundredths; a command's child
goes through the same entry point, in a session of its own, so that whatever it leaves is found.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
import types
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PLAIN_ENV = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "MPLBACKEND": "agg"}
LIBRARIES = ("torch._dynamo", "torchvision.datasets", "sklearn.metrics", "matplotlib.pyplot")
GRACE = 6  # seconds in which what a command started may go away; a loader's worker looks every 5


@dataclass(frozen=True)
class Run:
    """What a command left: its exit code, what it wrote to the terminal, its folder."""

    code: int
    out: str
    err: str
    folder: Path
    left: tuple[str, ...] = ()  # processes that outlived it


class Warm:
    """The parent of the commands; `run` is to it what `subprocess.run` is to the shell."""

    def __init__(self, module: str = "tests.warm") -> None:
        self.server = subprocess.Popen(
            [sys.executable, "-m", module],
            cwd=ROOT,
            env=os.environ | PLAIN_ENV,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, *argv: str, folder: Path, timeout: float = 60, mirror: str = "") -> Run:
        """Run `python SCRIPT ...` or `autoddp run ...` with `folder` as its working directory.

        With `mirror`, torchvision downloads from there (see archives.py).
        """
        folder.mkdir(parents=True, exist_ok=True)
        logs = [str(folder.parent / f"{folder.name}.{name}") for name in ("out", "err")]
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        print(
            json.dumps([argv, str(folder), logs, mirror, timeout]),
            file=self.server.stdin,
            flush=True,
        )
        code, left = json.loads(self.server.stdout.readline())
        out, err = (Path(log).read_text() for log in logs)
        assert code is not None, f"{' '.join(argv)} hangs\n{out}\n{err}"
        return Run(code, out, err, folder, tuple(left))

    def close(self) -> None:
        """End the parent: it has nothing to lose."""
        self.server.kill()
        self.server.communicate()


def fresh(*argv: str, folder: Path, timeout: float = 120) -> Run:
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


def _child(argv: list[str], folder: str, logs: list[str], mirror: str) -> None:
    """Be the command, and end as an interpreter ends."""
    import torch

    os.setsid()
    os.chdir(folder)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for target, log in zip((1, 2), logs, strict=True):
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), target)
    torch.set_num_threads(1)
    if mirror:
        from tests.archives import point_torchvision

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
    """The exit code, or None after killing a command that ran out of time."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


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


def _leftover(sid: int) -> list[str]:
    """What is still there of a command's session after a while; it is killed."""
    deadline = time.monotonic() + GRACE
    while (there := _session(sid)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in there:
        os.kill(pid, signal.SIGKILL)
    return [f"{pid} ({name})" for pid, name in there.items()]


def serve() -> None:
    """Read commands from stdin, one JSON line each; answer with exit code and what was left."""
    for name in (*LIBRARIES, "autoddp.cli", "autoddp.launch", "autoddp.launching.agent", "autoddp.worker"):
        importlib.import_module(name)

    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        argv, folder, logs, mirror, timeout = json.loads(line)
        pid = os.fork()
        if pid == 0:
            answers.close()
            _child(argv, folder, logs, mirror)
        code = _wait(pid, timeout)
        print(json.dumps([code, _leftover(pid)]), file=answers, flush=True)


if __name__ == "__main__":
    serve()
