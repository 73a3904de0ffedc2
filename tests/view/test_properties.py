"""Rules against the plain operation, for shapes and cuts that hypothesis makes up."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F  # the field's name for it

from autoddp.view import full
from tests.support.ranks import run_ranks
from tests.view.compare import Counting, by_rows, difference

OPERATIONS = {
    "scale": lambda x, w: x * w,
    "softmax": lambda x, w: (x * w).softmax(-1),
    "mean": lambda x, w: (x * w).mean(),
    "sum of all": lambda x, w: (x * w).sum() / 3,
    "sum of one": lambda x, w: (x * w).sum(1),
    "over the batch": lambda x, w: (x * w).sum(0),
    "views": lambda x, w: (x * w).flatten(0, 1).reshape(x.shape).transpose(1, 2).unsqueeze(0),
    "slices": lambda x, w: (x * w)[:, :1, ...] + x[..., -1:],
    "rows": lambda x, w: (x * w)[1:].sum(),
    "in place": lambda x, w: (x * w).clone().mul_(2).add_(w),
    "loss": lambda x, w: F.mse_loss(x * w, x),
    "linear": lambda x, w: F.linear(x, w.diag()),
    "coupled": lambda x, w: (x * w).flatten(1) @ (x * w).flatten(1).T,
}


def _some(group: Any) -> list[str]:
    torch.set_default_dtype(torch.float64)
    view, said = Counting(group), []

    # the same examples on every rank, which all call the collectives of each
    @settings(max_examples=150, derandomize=True, database=None, deadline=None)
    @given(
        sizes=st.lists(st.integers(0, 4), min_size=group.size, max_size=group.size).filter(any),
        rest=st.tuples(st.integers(1, 3), st.integers(1, 4)),
        name=st.sampled_from(sorted(OPERATIONS)),
        seed=st.integers(0, 99),
    )
    def check(sizes: list[int], rest: tuple[int, int], name: str, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(sum(sizes), *rest, generator=generator)
        results, gradients = [], []
        for batch in (x, by_rows(x, view.cuts(tuple(sizes)))):
            w = torch.linspace(0.5, 1.5, rest[1]).requires_grad_()
            out = OPERATIONS[name](batch, w)
            full(out).sin().sum().backward()
            results.append(full(out).detach())
            gradients.append(w.grad)
        mean = group.all_reduce(gradients[1].clone()) / group.size
        found = difference(results[0], results[1]) or difference(gradients[0], mean)
        if found:  # kept, not raised: hypothesis would go on by itself on this rank alone
            said.append(f"{name} {sizes} {rest}: {found}")

    check()
    return said


def test_rules_give_what_plain_operations_give_on_2_ranks():
    assert run_ranks(_some, 2) == [[], []]


def test_rules_give_what_plain_operations_give_on_3_ranks():
    assert run_ranks(_some, 3) == [[], [], []]
