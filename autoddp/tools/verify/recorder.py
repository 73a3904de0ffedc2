"""Record what each optimizer step had and made: one file of JSON lines for each rank."""

from __future__ import annotations

import array
import functools
import json
import os
import random
import sys
import zlib
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from autoddp.comm import accelerator
from autoddp.comm.world import World
from autoddp.report import users_line
from autoddp.tools.rehearse.recording import Enough, value
from autoddp.tools.rehearse.task import RunTask
from autoddp.tools.verify import float64_mode
from autoddp.view.names import named_modules

SIGNS = 4096  # length of the fixed row of signs that numbers are summed with


class StepRecorder:
    """A writer of one line of JSON after every step of any optimizer, and one at the end.

    All ranks read every loss: reading may sum it over the ranks, and then all must take part.
    """

    def __init__(self, folder: Path, rank: int, steps: int | None) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self.file = os.open(folder / f"{rank}.jsonl", flags, 0o600)
        self.steps, self.count, self.depth, self.process = steps, 0, 0, os.getpid()
        self.losses: list[tuple[str, Tensor]] = []
        # by the id of an optimizer: the gradients, while it steps
        self.before: dict[int, list[list[float] | None]] = {}
        # by the id of an optimizer: its number, and how many parameters it had
        self.optimizers: dict[int, tuple[int, int]] = {}
        self.names: dict[int, str] = {}

    def setup(self, undo: ExitStack) -> None:
        """Look at every step and every backward from here on."""
        undo.callback(register_optimizer_step_pre_hook(self.begin).remove)
        undo.callback(register_optimizer_step_post_hook(self.end).remove)
        plain: Any = torch.autograd.backward

        @functools.wraps(plain)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if self._here() and not self.depth:
                self.note(tensors)
            self.depth += 1
            try:
                return plain(tensors, *args, **kwargs)
            finally:
                self.depth -= 1

        torch.autograd.backward = backward
        undo.callback(setattr, torch.autograd, "backward", plain)

    def _here(self) -> bool:
        return os.getpid() == self.process and not torch.compiler.is_compiling()

    def note(self, tensors: Any) -> None:
        """Remember the roots of a backward as losses."""
        where = users_line(2)
        with torch.no_grad():
            roots = [tensors] if isinstance(tensors, Tensor) else list(tensors)
            self.losses += [(where, root.detach()) for root in roots]

    def begin(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Read the gradients before the step, which may use them up."""
        if self._here():
            self.before[id(optimizer)] = prints_of(p.grad for p in parameters(optimizer))

    def end(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Write down what the step had, and what it made of the parameters."""
        if not self._here():
            return
        self.count += 1
        mine = parameters(optimizer)
        gradients = self.before.pop(id(optimizer), [])
        if not any(gradients):  # a closure makes them within the step
            gradients = prints_of(p.grad for p in mine)
        record = {
            "step": self.count,
            "line": users_line(),
            "losses": self._losses(),
            "lr": [float(group["lr"]) for group in optimizer.param_groups if "lr" in group],
            "gradients": gradients,
            "parameters": prints_of(mine),
            "dtypes": sorted({str(p.dtype).removeprefix("torch.") for p in mine}),
            "generators": generators(),
        }
        self._write(record | self._who(optimizer, mine))
        if self.steps is not None and self.count >= self.steps:
            raise Enough

    def close(self, raised: BaseException | None = None) -> None:
        """Write the line at the end, with the losses that no step followed."""
        if os.getpid() == self.process:
            losses = [] if raised else self._losses()
            self._write(
                {"ended": True, "losses": losses, "raised": raised and type(raised).__name__}
            )
            os.close(self.file)

    def _losses(self) -> list[tuple[str, float]]:
        found, self.losses = self.losses, []
        with torch.no_grad():
            return [(where, value(root)) for where, root in found]

    def _who(self, optimizer: Any, mine: list[Tensor]) -> dict[str, Any]:
        """Return the optimizer's number, and, where they are new, the names of what it changes."""
        number, known = self.optimizers.get(id(optimizer), (len(self.optimizers), -1))
        self.optimizers[id(optimizer)] = number, len(mine)
        who: dict[str, Any] = {"optimizer": number}
        if known != len(mine):
            named = named_modules()
            who["modules"] = {name: type(module).__name__ for name, module in named.values()}
            self.names |= names_of_parameters(named)
            groups = optimizer.param_groups
            places = [(g, p) for g, group in enumerate(groups) for p in range(len(group["params"]))]
            who["names"] = [
                self.names.get(id(parameter), f"parameter {p} of group {g}")
                for parameter, (g, p) in zip(mine, places, strict=True)
            ]
        return who

    def _write(self, record: dict[str, Any]) -> None:
        os.write(self.file, json.dumps(record).encode() + b"\n")


def record(task: RunTask, world: World, undo: ExitStack) -> StepRecorder:
    """Start the recorder of a run, which records from here on."""
    if task.settings.get("other_order"):
        torch.set_num_threads(1 if torch.get_num_threads() > 1 else 2)
    if task.settings.get("float64"):
        float64_mode.setup(undo)
    recorder = StepRecorder(Path(task.records), world.rank, task.steps)
    recorder.setup(undo)
    return recorder


def parameters(optimizer: Any) -> list[Tensor]:
    """Return all parameters of an optimizer, in the order of their groups."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def prints_of(tensors: Any) -> list[list[float] | None]:
    """Compute a fingerprint of each tensor in float64; None stays None.

    A fingerprint is the norm, the sum, and the sum under fixed signs.
    """
    with torch.no_grad():
        found = [None if x is None else fingerprint(x) for x in tensors]
        by_device: dict[torch.device, list[Tensor]] = {}
        for x in found:
            if x is not None:
                by_device.setdefault(x.device, []).append(x)
        read = {device: iter(torch.stack(some).tolist()) for device, some in by_device.items()}
        return [None if x is None else next(read[x.device]) for x in found]


def fingerprint(x: Tensor) -> Tensor:
    """Reduce a tensor to its norm, its sum and its signed sum.

    The last two change by about the norm of what changes.
    """
    x = x.detach()
    if x.layout is not torch.strided:
        x = x.coalesce().values() if x.layout is torch.sparse_coo else x.to_dense()
    if x.is_complex():
        x = torch.view_as_real(x)
    flat = x.reshape(-1).double()
    return torch.stack([torch.linalg.vector_norm(flat), flat.sum(), signed(flat)])


def signed(flat: Tensor) -> Tensor:
    """Sum the numbers under signs that are the same in every run."""
    row = signs(str(flat.device))
    while len(flat) > SIGNS:
        whole = len(flat) // SIGNS * SIGNS
        head = flat[:whole].view(-1, SIGNS) @ row
        flat = torch.cat([head, flat[whole:]])
    return torch.dot(flat, row[: len(flat)])


@functools.cache
def signs(device: str) -> Tensor:
    """Draw the row of signs, from no generator that the script sees."""
    draw = random.Random(0)
    row = [draw.choice((-1.0, 1.0)) for _ in range(SIGNS)]
    return torch.tensor(row, dtype=torch.float64, device=device)


def generators() -> dict[str, int]:
    """Return a number for the state of each generator that a script knows."""
    _, numbers, rest = random.getstate()
    found = {"random": zlib.crc32(array.array("Q", numbers).tobytes() + repr(rest).encode())}
    if "numpy" in sys.modules:
        state: Any = sys.modules["numpy"].random.get_state()
        found["numpy"] = zlib.crc32(state[1].tobytes() + repr(state[2:]).encode())
    found["torch"] = zlib.crc32(torch.get_rng_state().numpy().tobytes())
    for device, state in zip(accelerator.devices(), accelerator.states(), strict=True):
        found[f"torch on {device}"] = zlib.crc32(state.cpu().numpy().tobytes())
    return found


def names_of_parameters(modules: dict[int, tuple[str, nn.Module]]) -> dict[int, str]:
    """Name every parameter of these modules by its id, as in `Net.fc.weight`."""
    found: dict[int, str] = {}
    for path, module in modules.values():
        for name, parameter in module.named_parameters(recurse=False):
            found.setdefault(id(parameter), f"{path}.{name}")
    return found
