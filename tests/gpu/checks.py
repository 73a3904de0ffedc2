"""Is it right on this machine? Each check is a script for a GPU, against itself in one process."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.gpu.machine import Machine, command, environ, run
from tests.support.same import NUMBER, same_text


@dataclass(frozen=True)
class Check:
    """A script whose printed numbers must be those of one process, to `rtol` of them.

    Attributes:
        name: The script's, with its arguments.
        what: What it is about.
        rtol: Of each number; 0 where the script itself says whether it went well, in words.
        options: Of `autoddp run`.
        direct: The script starts its ranks itself; then its last argument is their number.
    """

    name: str
    what: str
    rtol: float = 0.0
    options: tuple[str, ...] = ()
    direct: bool = False


CHECKS = [
    Check("exact", "BatchNorm and dropout in float64", 1e-9),
    Check("batchnorm", "ResNet, BatchNorm, AMP, channels_last, cudnn.benchmark", 5e-2),
    Check("attention", "attention with dropout in its kernel, bfloat16"),
    Check("prefetcher", "batches copied on a side stream", 1e-9),
    Check("compiled default", "torch.compile", 1e-3),
    Check("compiled reduce-overhead", "torch.compile with CUDA graphs", 1e-3),
    Check("recurrent", "LSTM with cuDNN's dropout"),
    Check("decorated", "@distributed after torch.cuda.is_available()", 1e-9, direct=True),
    Check("in_flight", "the script ends while its device works"),
]


@dataclass(frozen=True)
class Result:
    """What became of a check: passed or failed, with what was seen."""

    name: str
    what: str
    state: str
    seen: str
    seconds: float


def all_of(machine: Machine, tiny: bool, folder: Path, say: Callable[[str], None]) -> list[Result]:
    """Every check, one after the other."""
    found = []
    checks = [lambda check=check: compare(check, machine, tiny, folder) for check in CHECKS]
    checks += [lambda: killed(machine, tiny, folder), lambda: stopped(machine, tiny, folder)]
    for check in checks:
        found.append(check())
        say(f"{found[-1].state:8}{found[-1].what}: {found[-1].seen}")
    return found


def compare(check: Check, machine: Machine, tiny: bool, folder: Path) -> Result:
    """One process against ranks."""
    ranks = machine.ranks
    name, *args = check.name.split()
    plain = run(command(name, *args, *(["1"] if check.direct else [])), tiny, folder)
    if check.direct:
        several = run(command(name, *args, str(ranks)), tiny, folder)
    else:
        several = run(command(name, *args, nproc=ranks, options=check.options), tiny, folder)
    state, seen = same(plain.out, several.out, check.rtol)
    if several.code != 0 or plain.code != 0:
        state, seen = (
            "failed",
            f"exit codes {plain.code} and {several.code}: {_last(several.err or plain.err)}",
        )
    return Result(check.name, check.what, state, seen, several.seconds)


def same(want: str, got: str, rtol: float) -> tuple[str, str]:
    """Whether two terminals say the same, numbers to `rtol`; and the largest difference."""
    try:
        worst = same_text(want, got, rtol, "stdout")
    except AssertionError as error:
        return "failed", str(error)
    if "False" in got:
        return "failed", _last(got)
    return "passed", f"{worst:.1e}" if NUMBER.search(got) else _last(got)


def killed(machine: Machine, tiny: bool, folder: Path) -> Result:
    """`kill -9` of the last rank ends the job, which names it."""
    return _ended("kill -9 of a rank", signal.SIGKILL, machine, tiny, folder, 60)


def stopped(machine: Machine, tiny: bool, folder: Path) -> Result:
    """A rank that does nothing any more is told after --hang-timeout."""
    return _ended(
        "a rank that hangs", signal.SIGSTOP, machine, tiny, folder, 120, "--hang-timeout", "10"
    )


def _ended(
    what: str,
    number: int,
    machine: Machine,
    tiny: bool,
    folder: Path,
    seconds: float,
    *options: str,
) -> Result:
    told = command("endless", nproc=machine.ranks, options=options)
    with subprocess.Popen(
        told,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environ(tiny),
        cwd=folder,
    ) as job:
        assert job.stdout is not None
        line = job.stdout.readline()
        began = time.monotonic()
        try:
            if line != "trains\n":
                return Result("endless", what, "failed", f"it does not train: {line!r}", 0.0)
            children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
            os.kill(max(map(int, children)), number)
            _, err = job.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            return Result("endless", what, "failed", f"goes on after {seconds:.0f} s", seconds)
        finally:
            job.kill()
    took = time.monotonic() - began
    named = f"rank {machine.ranks - 1}" in err and job.returncode != 0
    return Result(
        "endless",
        what,
        "passed" if named else "failed",
        f"ended in {took:.1f} s: {_last(err)}",
        took,
    )


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:160] if lines else "nothing was printed"
