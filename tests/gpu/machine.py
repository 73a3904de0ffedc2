"""Which accelerators there are, asked in a process of its own: this one must not begin CUDA."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

SCRIPTS = Path(__file__).parent / "scripts"
ROOT = Path(__file__).parents[2]
ASK = """
import json, torch
n = torch.accelerator.device_count() if torch.accelerator.is_available() else 0
kind = torch.accelerator.current_accelerator().type if n else ""
names = [torch.get_device_module(kind).get_device_name(i) for i in range(n)]
nccl = ".".join(map(str, torch.cuda.nccl.version())) if kind == "cuda" else None
print(json.dumps([kind, names, torch.__version__, str(torch.version.cuda), str(nccl)]))
"""


@dataclass(frozen=True)
class Machine:
    """What the page begins with."""

    kind: str
    gpus: list[str]
    torch: str
    cuda: str
    nccl: str

    @property
    def ranks(self) -> int:
        """How many ranks a job of several has here: two share a GPU where there is one."""
        return max(2, min(8, len(self.gpus)))

    @classmethod
    def here(cls) -> Machine:
        """This one."""
        done = subprocess.run(
            [sys.executable, "-c", ASK], capture_output=True, text=True, check=True
        )
        return cls(*json.loads(done.stdout.splitlines()[-1]))


@dataclass(frozen=True)
class Trial:
    """One use of the command: on what, how small, where, and until when parts begin."""

    machine: Machine
    tiny: bool
    folder: Path
    until: float  # of `time.monotonic()`

    @property
    def late(self) -> bool:
        """Whether no part begins any more."""
        return time.monotonic() > self.until


@dataclass(frozen=True)
class Done:
    """A command that has ended, or was ended after its time; then it has no exit code."""

    code: int | None
    out: str
    err: str
    seconds: float
    folder: Path


def environ(tiny: bool) -> dict[str, str]:
    """The scripts' own; `LAUNCHED` is when their command was given."""
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), str(ROOT)]))
    more = {"PYTHONPATH": path, "LAUNCHED": str(time.time()), "PYTHONWARNINGS": "ignore"}
    more["AUTODDP_PLACEMENT"] = "sharded"  # what is tested and measured
    return os.environ | more | ({"TINY": "1", "OMP_NUM_THREADS": "1"} if tiny else {})


def command(script: str, *args: str, nproc: int = 0, options: tuple[str, ...] = ()) -> list[str]:
    """Of a script in one process, or in ranks."""
    path = [str(SCRIPTS / f"{script}.py"), *args]
    if not nproc:
        return [sys.executable, *path]
    return [sys.executable, "-m", "autoddp", "run", "--nproc", str(nproc), *options, *path]


def by_hand(script: str, *args: str, nproc: int) -> list[str]:
    """Of a script that is written for torchrun."""
    run = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={nproc}")
    return [sys.executable, *run, str(SCRIPTS / f"{script}.py"), *args]


def run(told: list[str], trial: Trial, seconds: float, place: str = ".") -> Done:
    """Run a command to its end, in a folder of the trial's."""
    folder, began = trial.folder / place, time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        done = subprocess.run(
            told,
            capture_output=True,
            text=True,
            timeout=seconds * (4 if trial.tiny else 1),  # machines that try it are busy
            env=environ(trial.tiny),
            cwd=folder,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Done(None, "", f"ended after {seconds:.0f} s", seconds, folder)
    return Done(done.returncode, done.stdout, done.stderr, time.monotonic() - began, folder)


def last(text: str) -> str:
    """The last line of a terminal."""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:160] if lines else "nothing was printed"
