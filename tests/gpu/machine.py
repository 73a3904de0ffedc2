"""Which GPUs there are, asked in a process of its own: this one must not become CUDA's."""

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
n = torch.cuda.device_count()
names = [torch.cuda.get_device_name(i) for i in range(n)]
nccl = str(torch.cuda.nccl.version() if n else None)
print(json.dumps([names, torch.__version__, str(torch.version.cuda), nccl]))
"""


@dataclass(frozen=True)
class Machine:
    """What the page begins with."""

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
class Done:
    """A command that has ended, or was ended after its time."""

    code: int | None
    out: str
    err: str
    seconds: float


def environ(tiny: bool) -> dict[str, str]:
    """The scripts' own; `LAUNCHED` is when their command was given."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    more = {"PYTHONPATH": path, "LAUNCHED": str(time.time()), "PYTHONWARNINGS": "ignore"}
    return os.environ | more | ({"TINY": "1"} if tiny else {})


def command(script: str, *args: str, nproc: int = 0, options: tuple[str, ...] = ()) -> list[str]:
    """Of a script in one process, or in ranks."""
    path = [str(SCRIPTS / f"{script}.py"), *args]
    if not nproc:
        return [sys.executable, *path]
    return [sys.executable, "-m", "autoddp", "run", "--nproc", str(nproc), *options, *path]


def run(told: list[str], tiny: bool, folder: Path, seconds: float = 600) -> Done:
    """Run a command to its end."""
    began = time.monotonic()
    try:
        done = subprocess.run(
            told,
            capture_output=True,
            text=True,
            timeout=seconds,
            env=environ(tiny),
            cwd=folder,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        return Done(None, _text(late.stdout), _text(late.stderr), time.monotonic() - began)
    return Done(done.returncode, done.stdout, done.stderr, time.monotonic() - began)


def _text(data: bytes | str | None) -> str:
    return data.decode(errors="replace") if isinstance(data, bytes) else data or ""
