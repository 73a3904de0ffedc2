"""Runs scripts on the simulated accelerator: `python` in one process, `autoddp run` on ranks."""

from __future__ import annotations

import atexit
import functools
import os
import sys
from pathlib import Path

import pytest

from tests.support.warm import PLAIN_ENV, Run, Warm

PLUGIN = Path(__file__).parent / "plugin"
ENVIRON = {
    "TORCH_CPP_LOG_LEVEL": "ERROR",  # torch's reducer has no timer for this device, and says so
}


def lacking() -> str:
    """Why there is no such device here; empty if there is."""
    import torch  # noqa: F401  # before it could find the device: this process shall not have it

    sys.path.insert(0, str(PLUGIN))
    try:
        from simulated import build

        reason = build.lacking()
        if not reason:
            build.library()  # before a command's time runs
        return reason
    finally:
        sys.path.remove(str(PLUGIN))


def environ(settings: dict[str, str]) -> dict[str, str]:
    """With the device where torch looks for some, and its settings."""
    path = os.pathsep.join([str(PLUGIN), str(Path(__file__).parents[2])])
    return os.environ | PLAIN_ENV | ENVIRON | settings | {"PYTHONPATH": path}


@functools.cache
def parent() -> Warm:
    """A process with torch and the device, of which commands are forks."""
    reason = lacking()
    if reason:
        pytest.skip(reason)
    made, mine = Warm(env=environ({})), os.getpid()
    atexit.register(lambda: made.close() if os.getpid() == mine else None)
    return made


def run(*command: str, folder: Path, **settings: str) -> Run:
    """One command, with settings of the device, which the driver reads in each process anew."""
    return parent().run(*command, folder=folder, timeout=240, env=environ(settings))


def script(text: str, folder: Path, name: str = "job.py") -> str:
    """A file with this text."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text)
    return str(path)


def alone(path: str, folder: Path, *arguments: str, **settings: str) -> Run:
    """What `python` gives, on one device."""
    return run("python", path, *arguments, folder=folder / "python", **settings)


def ranks(
    path: str, folder: Path, *options: str, nproc: int = 2, arguments: tuple = (), **settings: str
) -> Run:
    """What `autoddp run` gives."""
    command = ("autoddp", "run", "--nproc", str(nproc), *options, path, *arguments)
    return run(*command, folder=folder / f"ranks{nproc}", **settings)
