"""Is it right on this machine? Each check is a script for a GPU, against itself in one process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.gpu.machine import Trial, by_hand, command, environ, last, run
from tests.support.same import NUMBER, same_files, same_text

PASSED, FAILED, NOT_HERE = "pass", "fail", "not here"
STEPS = 25  # of which the host's waits are counted


@dataclass(frozen=True)
class Check:
    """A script whose printed numbers and files must be those of one process, to `rtol` of them.

    Attributes:
        name: The script's, with its arguments.
        what: What it is about.
        rtol: Of each number; 0 for the same characters.
        direct: The script starts its ranks itself; then its last argument is their number.
        seconds: The time that it may take.
    """

    name: str
    what: str
    rtol: float = 0.0
    direct: bool = False
    seconds: float = 90


CHECKS = [
    Check("equal batchnorm", "BatchNorm and dropout", 1e-9),
    Check("equal dropout", "dropout alone", 1e-9),
    Check("equal amp", "autocast with GradScaler, unscale_ and clipping", 5e-2),
    Check("equal channels_last", "bfloat16, channels_last, cudnn.benchmark", 5e-2),
    Check("equal accumulation", "gradients of three backwards", 1e-9),
    Check("equal ema", "AdamW with an average of the weights", 1e-9),
    Check("equal prefetcher", "batches from pinned memory, copied on a side stream", 1e-9),
    Check("equal attention", "attention", 1e-9),
    Check("equal checkpoint", "checkpointing, with dropout inside", 1e-9),
    Check("equal default_device", "a default device, whose generator shuffles", 1e-9),
    Check("masks", "draws of sharded tensors, bit by bit"),
    Check("learns attention", "attention with dropout in its kernel, bfloat16, learns"),
    Check("learns recurrent", "an LSTM with cuDNN's dropout learns"),
    Check("decorated", "@distributed after torch.cuda.is_available()", 1e-9, direct=True),
    Check("in_flight", "the script ends while its device works"),
    Check("equal compiled", "torch.compile", 1e-9, seconds=180),
    Check("equal graphs", "torch.compile with CUDA graphs", 1e-9, seconds=180),
]


@dataclass(frozen=True)
class Result:
    """What became of a check: pass, fail or not here, with what was seen."""

    name: str
    what: str
    state: str
    seen: str
    seconds: float = 0.0


def all_of(trial: Trial) -> list[Result]:
    """Every check, one after the other."""
    parts: list[Any] = [(name, end.what, partial(ended, name)) for name, end in ENDS.items()]
    parts += [("waits", WAITS, waits)]
    parts += [(check.name, check.what, partial(compare, check)) for check in CHECKS]
    found = []
    for name, what, check in parts:
        late = trial.late
        found.append(Result(name, what, NOT_HERE, "no time was left") if late else check(trial))
        print(f"{found[-1].state:9}{what}: {found[-1].seen}", flush=True)
    return found


def compare(check: Check, trial: Trial) -> Result:
    """One process against ranks, at the same time."""
    machine, (name, *args) = trial.machine, check.name.split()
    if check.name == "equal prefetcher" and not machine.gpus:
        return Result(check.name, check.what, NOT_HERE, "no streams without a GPU")
    if check.direct:
        told = [command(name, *args, str(count)) for count in (1, machine.ranks)]
    else:
        told = [command(name, *args, nproc=count) for count in (0, machine.ranks)]
    places = [f"{check.name}/{name}" for name in ("python", "ranks")]
    with ThreadPoolExecutor(2) as both:
        plain, several = both.map(
            lambda one, place: run(one, trial, check.seconds, place), told, places
        )
    state, seen = FAILED, f"exit codes {plain.code}, {several.code}: "
    seen += last(several.err or plain.err)
    if plain.code == several.code == 0:
        state, seen = same(plain, several, check.rtol)
    backend = {"cuda": "nccl", "simulated": "simccl"}.get(machine.kind, "")
    own = len(machine.gpus) >= machine.ranks
    if state == PASSED and own and f"{backend} (" not in several.err:
        state, seen = FAILED, f"no {backend}: {last(several.err)}"
    return Result(check.name, check.what, state, seen, several.seconds)


def same(want: Any, got: Any, rtol: float) -> tuple[str, str]:
    """Whether terminals and files are the same, numbers to `rtol`; and the largest difference."""
    try:
        worst = same_text(want.out, got.out, rtol, "stdout")
        worst = max(worst, same_files(want.folder, got.folder, rtol))
    except AssertionError as error:
        return FAILED, str(error).splitlines()[0]
    if "False" in got.out:
        return FAILED, last(got.out)
    return PASSED, f"{worst:.1e}" if NUMBER.search(got.out) else last(got.out)


@dataclass(frozen=True)
class End:
    """A way in which a job ends before its script does, and what it says then.

    A signal goes to the last rank, or to all as from a terminal; `{}` is the last rank's number.
    """

    what: str
    number: int | None
    to_all: bool
    words: tuple[str, ...]
    seconds: float = 60
    options: tuple[str, ...] = ()


ENDS = {
    "killed": End("kill -9 of a rank", signal.SIGKILL, False, ("rank {}",)),
    "stopped": End(
        "a rank that hangs", signal.SIGSTOP, False, ("rank {}",), 90, ("--hang-timeout", "10")
    ),
    "interrupted": End("Ctrl-C", signal.SIGINT, True, ("KeyboardInterrupt",)),
    "memory": End("a rank that runs out of memory", None, False, ("rank {}", "memory")),
}


def ended(name: str, trial: Trial) -> Result:
    """A job that trains without end, ended in one way."""
    end, ranks = ENDS[name], trial.machine.ranks
    told = command("endless", name, nproc=ranks, options=end.options)
    with subprocess.Popen(
        told,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environ(trial.tiny),
        cwd=trial.folder,
        start_new_session=True,
    ) as job:
        assert job.stdout is not None
        line, began = job.stdout.readline(), time.monotonic()
        try:
            if line != "trains\n":
                return Result(name, end.what, FAILED, f"it does not train: {line!r}")
            children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
            if end.number is not None and end.to_all:
                os.killpg(job.pid, end.number)
            elif end.number is not None:
                os.kill(max(map(int, children)), end.number)
            _, err = job.communicate(timeout=end.seconds)
        except subprocess.TimeoutExpired:
            return Result(name, end.what, FAILED, "goes on after its time", end.seconds)
        finally:
            job.kill()
    took = time.monotonic() - began
    words = [word.format(ranks - 1) for word in end.words]
    good = job.returncode != 0 and all(word in err for word in words)
    seen = f"ended in {took:.1f} s with {job.returncode}: {last(err)}"
    return Result(name, end.what, PASSED if good else FAILED, seen, took)


# ---- how often the host waits

WAITS = "the host waits in a step no more often than with DDP by hand"


def waits(trial: Trial) -> Result:
    """Compare what torch tells of the host's waits in a ResNet's steps."""
    if not trial.machine.gpus:
        return Result("waits", WAITS, NOT_HERE, "no GPU")
    found, args, ranks = [], ("train", "cifar", str(STEPS)), trial.machine.ranks
    for told in (by_hand(*args, "ddp", nproc=ranks), command(*args, nproc=ranks)):
        done = run(told, trial, 90)
        if done.code != 0:
            return Result("waits", WAITS, FAILED, f"exit code {done.code}: {last(done.err)}")
        found.append(json.loads(done.out.splitlines()[-1])["waits_per_step"])
    state = PASSED if found[1] <= found[0] else FAILED
    return Result("waits", WAITS, state, f"{found[1]:.2f}, by hand {found[0]:.2f}", done.seconds)
