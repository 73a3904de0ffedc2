"""Sequences of ten functions on a sharded tensor and on the whole: equal values and gradients."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F  # the field's name for it

from autoddp.view import full
from tests.support.fuzz import examples
from tests.support.threads import run_threads
from tests.view.compare import Counting, by_rows, difference
from tests.view.programs import check

pytestmark = pytest.mark.slow

SHAPE = (3, 4)  # behind the batch: each function gives a tensor of the shape that it is given
Step = Callable[[Tensor, Tensor], Tensor]


def picked(x: Tensor, w: Tensor) -> Tensor:
    labels = torch.arange(len(x)) % x.shape[1]
    return x - x[torch.arange(len(x)), labels].unsqueeze(1)


def masked(x: Tensor, w: Tensor) -> Tensor:
    x = x.clone()
    x[..., w.detach() > 0.8] = 0.5
    return x


def assigned(x: Tensor, w: Tensor) -> Tensor:
    x = x.clone()
    x[:, 1] = w
    return x


def scattered(x: Tensor, w: Tensor) -> Tensor:
    return x.clone().scatter_add_(1, torch.zeros(len(x), 1, SHAPE[1], dtype=torch.long), x[:, 1:2])


STEPS: dict[str, Step] = {
    "scale": lambda x, w: x * w,
    "tanh": lambda x, w: x.tanh(),
    "clone and write": lambda x, w: x.clone().mul_(0.5).add_(w),
    "softmax": lambda x, w: x.softmax(-1),
    "cumsum": lambda x, w: x.cumsum(1) / 3,
    "sort": lambda x, w: x.sort(-1).values,
    "centre": lambda x, w: x - x.mean((1, 2), keepdim=True),
    "over the batch": lambda x, w: x - x.mean(0),
    "sum of all": lambda x, w: x + x.sin().sum() / x.numel(),
    "mean of all": lambda x, w: x - x.mean(),
    "largest": lambda x, w: x - x.amax(1, keepdim=True),
    "transpose": lambda x, w: x.transpose(0, 1).cos().transpose(1, 0),
    "permute": lambda x, w: (x.permute(2, 0, 1) * 2).permute(1, 2, 0),
    "flat": lambda x, w: x.reshape(-1, SHAPE[1]).mul(w).view(x.shape),
    "flat from behind": lambda x, w: (
        x.transpose(0, 1).reshape(-1, SHAPE[1]).sin().view(SHAPE[0], -1, SHAPE[1]).transpose(0, 1)
    ),
    "cat": lambda x, w: torch.cat([x[:, 1:], x[:, :1] * 2], 1),
    "stack": lambda x, w: torch.stack([x, -x], 1).amax(1),
    "chunk": lambda x, w: torch.cat(x.chunk(2, -1)[::-1], -1),
    "flip": lambda x, w: x.flip(1).roll(1, -1),
    "linear": lambda x, w: F.linear(x, w.diag()),
    "product": lambda x, w: (x @ x.mT).tanh() @ x / 4,
    "einsum": lambda x, w: torch.einsum("...j,j->...j", x, w),
    "norm": lambda x, w: F.layer_norm(x, SHAPE[1:], w),
    "length": lambda x, w: x / (1 + torch.linalg.vector_norm(x, dim=-1, keepdim=True)),
    "gather": lambda x, w: x.gather(2, x.detach().argsort(2)),
    "scattered": scattered,
    "picked": picked,
    "masked": masked,
    "assigned": assigned,
    "indices": lambda x, w: x[:, torch.tensor([2, 0, 1])],
    "one index": lambda x, w: x + x[:, None, 0],
    "where": lambda x, w: torch.where(x > 0, x, w * x),
    "loss": lambda x, w: x * F.mse_loss(x, x.detach() * w),
    "triangle": lambda x, w: x.tril(),
    "turned": lambda x, w: x.flip(0),
    "first": lambda x, w: x - x[:1],
    "detached": lambda x, w: x - x.detach() / 2,
}


@st.composite
def cases(draw: Any) -> tuple[tuple[int, ...], list[str], int]:
    sizes = draw(st.lists(st.integers(1, 3), min_size=2, max_size=3))
    names = draw(st.lists(st.sampled_from(sorted(STEPS)), min_size=10, max_size=10))
    return tuple(sizes), names, draw(st.integers(0, 99))


@examples(40)
@given(cases())
def test_programs_equal_those_on_the_whole_batch(case):
    sizes, names, seed = case
    generator = torch.Generator().manual_seed(seed)
    whole = torch.randn(sum(sizes), *SHAPE, generator=generator, dtype=torch.float64)
    weight = torch.linspace(0.5, 1.5, SHAPE[1], dtype=torch.float64)

    def run(cut: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        x, w = whole.clone().requires_grad_(), weight.clone().requires_grad_()
        y = cut(x) * w
        for name in names:
            y = STEPS[name](y, w)
        y.sin().sum().backward()
        return full(y), x.grad, w.grad

    want = run(lambda x: x)

    def here(group: Any) -> None:
        view = Counting(group)
        y, *gradients = run(lambda x: by_rows(x, view.shard_sizes(sizes)))
        means = [group.all_reduce(g.clone()) / group.size for g in gradients]
        said = difference(want, (y, *means), 1e-8)
        assert said is None, f"{said}; gathered: {view.names}"

    run_threads(here, len(sizes))


def test_programs_with_aliases_writes_and_draws_equal_those_of_one_process():
    first = 1000 * datetime.date.today().toordinal()  # others each day
    found = {seed: said for seed in range(first, first + 500) if (said := check(seed))}
    assert not found, f"`python -m tests.view.programs 1 --seed N`: {found}"
