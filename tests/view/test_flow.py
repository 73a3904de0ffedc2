"""What couples the rows of a batch is found, whatever hides it at the first call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.ranks import run_ranks
from tests.view.compare import by_rows, difference
from tests.view.test_proof import Layer
from tests.view.test_rows import installed

Forward = Callable[[Any, Tensor], Tensor]


def written(x: Tensor, column: Tensor) -> Tensor:
    """Write past the tensor that is used later: through a view of it."""
    out = x.clone()
    out[:, 0].add_(column)
    return out


def pooled(x: Tensor) -> Tensor:
    """Free memory that something of the batch was in, and take it again."""
    for _ in range(20):
        (x.sum(0) * 2).relu_()
    return x + x.new_zeros(6)


def sorted_by_group(x: Tensor) -> Tensor:
    """Multiply each row by its group's matrix, all rows of a group at once: experts do so."""
    group = (x[:, 0] > 0).long()
    order = group.argsort(stable=True)
    ends = torch.bincount(group, minlength=2).cumsum(0).int()
    matrices = torch.stack([torch.eye(8), 2 * torch.eye(8)]).float()
    rows = torch.nn.functional.pad(x, (0, 2)).float()[order]
    out = torch.nn.functional.grouped_mm(rows, matrices, offs=ends)
    return out[order.argsort()][:, :6].double()


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scale: float, more: dict[str, float], x: Tensor) -> Tensor:
        ctx.scale = scale
        return x * scale

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (g,) = grads
        return None, None, g * ctx.scale


HIDDEN: dict[str, Forward] = {
    "a bound that is not reached": lambda m, x: m.inner(x / (x.norm() / 20).clamp(min=1.0)),
    "a choice by a mean": lambda m, x: m.inner(torch.where(x.mean() > -1, x, -x)),
    "a range": lambda m, x: m.inner(x / x.abs().max().clamp(min=9.0)),
    "a floor": lambda m, x: m.inner(x / torch.maximum(x.std(0), torch.tensor(3.0))),
    "a zero of its own": lambda m, x: m.inner(x + x.mean(0) * m.scale),
    "one row for all": lambda m, x: m.inner(x + (x[0] - 9).relu()),
    "into a view": lambda m, x: m.inner(written(x, (x.sum() - 99).relu())),
    "into its own memory": lambda m, x: m.inner(x.clone().add_((x.sum() - 99).relu())),
}
APART: dict[str, Forward] = {
    "sizes alone": lambda m, x: m.inner(x + torch.ones_like(x[0]) + x[0].new_zeros(6)),
    "a sum that nothing uses": lambda m, x: (x.sum().relu(), m.inner(x))[1],
    "a gradient of a sum": lambda m, x: m.inner(x + slope(m, x)),
    "memory that was free": lambda m, x: m.inner(pooled(x)),
    "a function that is given no tensors first": lambda m, x: m.inner(Scaled.apply(2.0, {}, x)),
    "row by row": lambda m, x: torch.stack([m.inner(row) for row in x]),
}
if hasattr(torch.nn.functional, "grouped_mm"):  # since torch 2.10
    APART["rows sorted by group"] = lambda m, x: m.inner(sorted_by_group(x))


def slope(m: Any, x: Tensor) -> Tensor:
    z = x.detach().requires_grad_()
    return torch.autograd.grad(m.inner(z).pow(3).sum(), z)[0]


def trained(forward: Forward, batch: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """Weights after steps of which the later ones have far larger values."""
    torch.manual_seed(0)
    net = Layer(forward, scale=0.0)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    for number, x in enumerate(torch.randn(36, 6).split([12, 12, 7, 5])):
        net.scale = float(number)
        loss = net(batch((x - number) * (1 + 9 * number))).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [p.detach() for p in net.parameters()]


def _found(group: Any, name: str) -> Any:
    torch.set_default_dtype(torch.float64)
    forward = (HIDDEN | APART)[name]
    want = trained(forward, lambda x: x)
    with installed(group) as view:
        got = trained(forward, lambda x: by_rows(x, view.cut(len(x))))
        return difference(want, got), {d.what for d in view.report.of("whole")}


@pytest.mark.parametrize("name", HIDDEN)
def test_a_coupling_that_does_not_show_at_first_is_found(name):
    for found, whole in run_ranks(_found, 3, name):
        assert found is None
        assert "its rows depend on each other" in whole


@pytest.mark.parametrize("name", APART)
def test_what_couples_no_rows_is_run_by_rows(name):
    assert run_ranks(_found, 3, name) == [(None, set())] * 3
