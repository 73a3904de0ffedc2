"""The numbers of each optimizer step: losses, learning rates, fingerprints, generators' states."""

from __future__ import annotations

import gc
import pickle
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from autoddp.comm import accelerator
from autoddp.report import users_line
from autoddp.training.loading.generators import Generators

GOLDEN = 0.6180339887498949  # no multiple of it comes near a whole number often
ROW = 2**20  # numbers that are summed at a time
OURS = ("autoddp.", "torch.nn.parallel")  # modules that a user has not made


class Numbers:
    """The numbers of one process: the entry of a step of any optimizer.

    All ranks read every loss: reading may sum it over the ranks, and then all must take part.
    """

    def __init__(self) -> None:
        self.losses: list[tuple[str, Tensor]] = []
        # by the id of an optimizer: the gradients, while it steps
        self.before: dict[int, list[list[float] | None]] = {}
        # by the id of an optimizer: its number, and how many parameters it had
        self.optimizers: dict[int, tuple[int, int]] = {}

    def setup(self, undo: ExitStack) -> None:
        """Do nothing: optimizers and backward passes are all that is looked at."""

    @contextmanager
    def backward(self, roots: list[Tensor]) -> Iterator[None]:
        """Remember the roots of the backward inside as losses."""
        where = users_line()
        with torch.no_grad():
            self.losses += [(where, root.detach()) for root in roots]
        yield

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
            "losses": self._read(),
            "lr": [float(group["lr"]) for group in optimizer.param_groups if "lr" in group],
            "gradients": gradients,
            "parameters": prints_of(mine),
            "dtypes": sorted({str(p.dtype).removeprefix("torch.") for p in mine}),
            "generators": generators(),
        } | self._who(optimizer, mine)

    def rest(self, raised: object) -> dict[str, Any]:
        """Return the losses that no step followed; none after an error, when ranks have parted."""
        return {"losses": [] if raised else self._read()}

    def _read(self) -> list[tuple[str, float]]:
        found, self.losses = self.losses, []
        with torch.no_grad():
            return [(where, value(root)) for where, root in found]

    def _who(self, optimizer: Any, mine: list[Tensor]) -> dict[str, Any]:
        """Return the optimizer's number, and, where they are new, the names of what it changes."""
        number, known = self.optimizers.get(id(optimizer), (len(self.optimizers), -1))
        self.optimizers[id(optimizer)] = number, len(mine)
        if known == len(mine):
            return {"optimizer": number}
        named = names()
        found = [named.get(id(x), f"parameter {at}") for at, x in enumerate(mine)]
        return {"optimizer": number, "names": found}


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
    found = Generators()
    states = {"random": found.python, "numpy": found.numpy}
    devices = ("the CPU", *accelerator.devices())
    states |= {
        f"torch on {at}": x.cpu().numpy().tobytes()
        for at, x in zip(devices, found.torch, strict=True)
    }
    return {name: zlib.crc32(pickle.dumps(state)) for name, state in states.items()}


def names() -> dict[int, str]:
    """Name the parameters of all modules by their id, as in `Net.encoder.0.weight`.

    A name begins with the type of the outermost module.
    """
    found = [x for x in gc.get_objects() if issubclass(type(x), nn.Module)]
    users = [module for module in found if not type(module).__module__.startswith(OURS)]
    inner = {id(child) for module in users for child in module.modules() if child is not module}
    return {
        id(parameter): f"{type(module).__name__}.{name}"
        for module in users
        if id(module) not in inner
        for name, parameter in module.named_parameters()
    }
