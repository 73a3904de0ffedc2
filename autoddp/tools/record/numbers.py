"""The numbers of each optimizer step: losses, learning rates, fingerprints, generators' states."""

from __future__ import annotations

import array
import random
import sys
import zlib
from typing import Any

import torch
from torch import Tensor, nn

from autoddp.comm import accelerator
from autoddp.report import users_line
from autoddp.tools.record.module_names import named_modules

GOLDEN = 0.6180339887498949  # no multiple of it comes near a whole number often
ROW = 2**20  # numbers that are summed at a time


class Numbers:
    """The numbers of one process, as an entry for every step of any optimizer.

    All ranks read every loss: reading may sum it over the ranks, and then all must take part.
    """

    def __init__(self) -> None:
        self.losses: list[tuple[str, Tensor]] = []
        # by the id of an optimizer: the gradients, while it steps
        self.before: dict[int, list[list[float] | None]] = {}
        # by the id of an optimizer: its number, and how many parameters it had
        self.optimizers: dict[int, tuple[int, int]] = {}
        self.names: dict[int, str] = {}

    def note(self, roots: list[Tensor]) -> None:
        """Remember the roots of a backward as losses."""
        where = users_line(2)
        with torch.no_grad():
            self.losses += [(where, root.detach()) for root in roots]

    def begin(self, optimizer: Any) -> None:
        """Read the gradients before the step, which may use them up."""
        self.before[id(optimizer)] = prints_of(p.grad for p in parameters(optimizer))

    def step(self, optimizer: Any) -> dict[str, Any]:
        """Return what the step had, and what it made of the parameters."""
        mine = parameters(optimizer)
        gradients = self.before.pop(id(optimizer), [])
        if not any(gradients):  # a closure makes them within the step
            gradients = prints_of(p.grad for p in mine)
        return {
            "line": users_line(),
            "losses": self._losses(),
            "lr": [float(group["lr"]) for group in optimizer.param_groups if "lr" in group],
            "gradients": gradients,
            "parameters": prints_of(mine),
            "dtypes": sorted({str(p.dtype).removeprefix("torch.") for p in mine}),
            "generators": generators(),
        } | self._who(optimizer, mine)

    def rest(self, raised: BaseException | None) -> dict[str, Any]:
        """Return the losses that no step followed; none after an error, when ranks have parted."""
        return {"losses": [] if raised else self._losses()}

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
            self.names |= names_of_parameters(named)
            groups = optimizer.param_groups
            places = [(g, p) for g, group in enumerate(groups) for p in range(len(group["params"]))]
            who["names"] = [
                self.names.get(id(parameter), f"parameter {p} of group {g}")
                for parameter, (g, p) in zip(mine, places, strict=True)
            ]
        return who


def value(root: Tensor) -> float:
    """Read a loss as a number; a tensor of several numbers by its norm."""
    if root.is_complex():
        root = torch.view_as_real(root.resolve_conj())
    return float(root if root.dim() == 0 else root.double().norm())


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
    if hasattr(x, "to_local"):  # a DTensor, of a script with its own FSDP: this rank's part of it
        x = x.to_local()
    if x.layout is not torch.strided:
        x = x.coalesce().values() if x.layout is torch.sparse_coo else x.to_dense()
    if x.is_complex():
        x = torch.view_as_real(x.resolve_conj())
    flat = x.reshape(-1).double()
    at = torch.arange(min(len(flat), ROW), dtype=torch.float64, device=flat.device)
    signs = at.mul_(GOLDEN).frac_().sub_(0.5).sign_()  # the same in every run, and no pattern
    some = (torch.dot(part, signs[: len(part)]) for part in flat.split(ROW))
    return torch.stack([torch.linalg.vector_norm(flat), flat.sum(), sum(some, flat.new_zeros(()))])


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
