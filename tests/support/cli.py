"""The command line as a user calls it: `run_cli("run", "--nproc", "2", script)` in a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import warm
from tests.support.ports import free_port

ROOT = str(Path(__file__).parents[2])


@dataclass(frozen=True)
class Completed:
    """What came of a command: its exit code and all that it wrote."""

    rc: int
    out: str
    err: str

    @property
    def ours(self) -> list[str]:
        """The lines of ours on stderr."""
        return [line for line in self.err.splitlines() if line.startswith("[autoddp]")]

    @property
    def theirs(self) -> str:
        """What is on stderr without them: the script's."""
        lines = self.err.splitlines(keepends=True)
        return "".join(line for line in lines if not line.startswith("[autoddp]"))


def environ(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment, with our package importable and one thread for each rank."""
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return plain | {"PYTHONPATH": ROOT, "OMP_NUM_THREADS": "1"} | dict(more or {})


def run_cli(*args: object, **how: Any) -> Completed:
    """`autoddp ARGS`; `how` is `run_python`'s."""
    return run_python("-m", "autoddp", *args, **how)


def fork_cli(*args: object, **how: Any) -> Completed:
    """`autoddp ARGS` by a fork of a process with torch, where its start is not what is tested."""
    return fork_python("autoddp", *args, **how)


def start_cli(
    *args: object,
    folder: Path,
    logs: Path | None = None,
    env: Mapping[str, str] | None = None,
    network: str = "",
) -> warm.Fork:
    """Start `autoddp ARGS` by such a fork; what it writes is in LOGS.out and LOGS.err."""
    beside = logs or folder
    files = [beside.with_name(f"{beside.name}.{name}") for name in ("out", "err")]
    variables = environ({"PYTHONHASHSEED": "0", **(env or {})})  # else it would start anew
    return warm.shared().start(
        "autoddp", *map(str, args), folder=folder, logs=files, env=variables, network=network
    )


def end_all(started: Iterable[warm.Fork], timeout: float = 240) -> list[Completed]:
    """What came of commands that run at the same time."""
    started = list(started)
    try:
        written = [fork.communicate(timeout) for fork in started]
    finally:
        for fork in started:
            fork.kill()
    return [Completed(fork.wait(), *text) for fork, text in zip(started, written, strict=True)]


def run_nodes(*nodes: tuple[Path, Sequence[str]]) -> list[Completed]:
    """`autoddp run WORDS` in each folder: the nodes of one job, with a rank each."""
    port, count = free_port(), len(nodes)
    where = f"run -n 1 --nnodes {count} --master-addr 127.0.0.1 --master-port {port} --node-rank"
    return end_all(
        start_cli(*where.split(), node, *words, folder=folder)
        for node, (folder, words) in enumerate(nodes)
    )


def fork_python(
    *args: object,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: str = "",
    timeout: float = 120,
) -> Completed:
    """`python SCRIPT ARGS` by such a fork. What python reads when it starts cannot be in `env`."""
    argv = [*([] if args[0] == "autoddp" else ["python"]), *map(str, args)]
    with tempfile.TemporaryDirectory() as folder:
        given, *logs = (Path(folder, name) for name in ("in", "out", "err"))
        given.write_text(stdin)
        fork = warm.shared().start(
            *argv, folder=cwd or Path.cwd(), logs=logs, env=environ(env), stdin=given
        )
        try:
            out, err = fork.communicate(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(fork.pid, signal.SIGKILL)
            raise
        return Completed(fork.wait(), out, err)


def run_python(
    *args: object,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: str = "",
    timeout: float = 120,
) -> Completed:
    """`python ARGS`."""
    done = subprocess.run(
        [sys.executable, *map(str, args)],
        cwd=cwd,
        env=environ(env),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    return Completed(done.returncode, done.stdout, done.stderr)
