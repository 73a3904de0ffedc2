"""The numbers of each optimizer step: losses, learning rates, fingerprints, generator states."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from autoddp.report import users_line
from autoddp.tools.record.recording import GENERATOR, GRADIENT, LOSS, PARAMETER, RATE
from autoddp.training.loading.generators import Generators

GOLDEN = 0.6180339887498949  # its multiples, modulo 1, give pseudo-random signs
CHUNK = 2**20  # numbers that are summed at once
NOT_USERS = ("autoddp.", "torch.nn.parallel")  # modules that the script has not made
Prints = dict[str, list[float]]  # by name: one number, or a fingerprint


class Numbers:
    """The numbers that one rank computes, with an entry for each step of any optimizer.

    All ranks read every loss, as reading may be an all-reduce.
    """

    def __init__(self) -> None:
        self.losses: list[tuple[str, Tensor]] = []
        self.names: dict[int, list[str]] = {}  # by id of an optimizer: the names of its parameters

    def setup(self, undo: ExitStack) -> None:
        """Do nothing, as no other calls are recorded."""

    @contextmanager
    def backward(self, roots: list[Tensor]) -> Iterator[None]:
        """Record the roots of a backward pass as losses."""
        line = users_line()
        with torch.no_grad():
            self.losses += [(line, root.detach()) for root in roots]
        yield

    def step(self, optimizer: Any) -> dict[str, Any]:
        """Return the entry of a step."""
        rates = [group["lr"] for group in optimizer.param_groups if "lr" in group]
        return {
            "line": users_line(),
            "dtypes": sorted({str(p.dtype).removeprefix("torch.") for p in parameters(optimizer)}),
            **self._read(),
            RATE: {f"of group {at}": [float(rate)] for at, rate in enumerate(rates)},
            GENERATOR: generators(),
            GRADIENT: self._prints(optimizer, "grad"),  # after the step, which may change them
            PARAMETER: self._prints(optimizer, "data"),
        }

    def rest(self, raised: object) -> dict[str, Any]:
        """Return the losses after the last step; none after an error, where ranks differ."""
        return {} if raised else self._read()

    def _read(self) -> dict[str, Any]:
        """Return the losses since the last step, and their lines, by number."""
        losses, self.losses = self.losses, []
        lines = {str(n): line for n, (line, _) in enumerate(losses, start=1)}
        with torch.no_grad():
            return {
                "lines": lines,
                LOSS: {n: [value(x)] for n, (_, x) in zip(lines, losses, strict=True)},
            }

    def _prints(self, optimizer: Any, name: str) -> Prints:
        """Return the fingerprints of all parameters or of their gradients, by name."""
        tensors = parameters(optimizer)
        labels = self.names.get(id(optimizer), [])
        if len(labels) != len(tensors):
            known = names()
            labels = [known.get(id(x), f"parameter {at}") for at, x in enumerate(tensors)]
            self.names[id(optimizer)] = labels
        pairs = zip(labels, (getattr(x, name) for x in tensors), strict=True)
        return {key: fingerprint(x) for key, x in pairs if x is not None}


def value(root: Tensor) -> float:
    """Return a loss as a number, and a tensor of several numbers as its norm."""
    root = real(root)
    return float(root if root.dim() == 0 else root.double().norm())


def real(x: Tensor) -> Tensor:
    """Return a complex tensor as a real one, with a last dimension of size 2."""
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


def parameters(optimizer: Any) -> list[Tensor]:
    """Return all parameters of an optimizer, in the order of their groups."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


@torch.no_grad()
def fingerprint(x: Tensor) -> list[float]:
    """Reduce a tensor to its norm, its sum, and its sum with fixed pseudo-random signs.

    A change of the tensor changes the sums by about the norm of the change.
    """
    x = x.detach()
    if x.layout is not torch.strided:
        x = x.coalesce().values() if x.layout is torch.sparse_coo else x.to_dense()
    flat = real(x).reshape(-1).double()
    at = torch.arange(min(len(flat), CHUNK), dtype=torch.float64, device=flat.device)
    signs = at.mul_(GOLDEN).frac_().sub_(0.5).sign_()
    signed = sum(float(torch.dot(part, signs[: len(part)])) for part in flat.split(CHUNK))
    return [float(torch.linalg.vector_norm(flat)), float(flat.sum()), signed]


def generators() -> dict[str, list[float]]:
    """Return a checksum of the state of each generator of Python, numpy and torch."""
    return {name: [checksum] for name, checksum in Generators().checksums().items()}


def names() -> dict[int, str]:
    """Return the names of the parameters of all modules by id, such as `Net.encoder.0.weight`.

    A name begins with the type of the outermost module.
    """
    modules = [x for x in gc.get_objects() if issubclass(type(x), nn.Module)]
    users = [module for module in modules if not type(module).__module__.startswith(NOT_USERS)]
    inner = {id(child) for module in users for child in module.modules() if child is not module}
    return {
        id(parameter): f"{type(module).__name__}.{name}"
        for module in users
        if id(module) not in inner
        for name, parameter in module.named_parameters()
    }
