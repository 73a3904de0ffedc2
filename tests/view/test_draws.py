"""Random draws for sharded tensors and states of generators equal those of one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autoddp.view.draws import Draws
from autoddp.view.sharded_tensor import is_sharded
from tests.support.ranks import run_ranks
from tests.view.compare import Counting, by_rows, difference

DRAWN: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda x: F.dropout(x, 0.4),
    "in a kernel": lambda x: torch.native_dropout(x, 0.4, True)[0],
    "dropout2d": lambda x: F.dropout2d(x, 0.4),
    "alpha": lambda x: F.alpha_dropout(x, 0.4, training=True),
    "features": lambda x: F.feature_alpha_dropout(x, 0.4, training=True),
    "dropout in place": lambda x: F.dropout(x * 1, 0.4, inplace=True),
    "no dropout": lambda x: F.dropout(x, 0.4, training=False),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "rrelu of negatives": lambda x: F.rrelu(x - 1, training=True),
    "fractional": lambda x: F.fractional_max_pool2d(F.pad(x, (2, 2, 2, 2)), 2, (2, 2)),
    "gumbel": lambda x: F.gumbel_softmax(x, dim=-1),
    "hard gumbel": lambda x: F.gumbel_softmax(x, hard=True, dim=1),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.3),
    "masked attention": lambda x: F.scaled_dot_product_attention(
        x, x, x, torch.zeros(x.shape[2], x.shape[2]), 0.3
    ),
    "around means": lambda x: torch.normal(x, 2.0),
    "around means, with deviations": lambda x: torch.normal(x, x.exp()),
    "with deviations": lambda x: torch.normal(1.0, x.exp()),
    "normal": lambda x: torch.randn_like(x),
    "uniform": lambda x: torch.rand_like(x),
    "integers": lambda x: torch.randint_like(x, 9),
    "filled": lambda x: x.clone().normal_(),
    "exponential": lambda x: x.clone().exponential_(),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "multinomial": lambda x: torch.multinomial(x.flatten(1).softmax(1), 2),
}
KEPT = ("normal", "uniform", "integers", "filled", "exponential", "bernoulli", "multinomial")
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda x: x,
    "channels last": lambda x: x.to(memory_format=torch.channels_last),
    "transposed": lambda x: x.transpose(2, 3),
}


def _by_rows(group: Any) -> list[str]:
    view, said = Counting(group), []
    for rows in (7, 4, group.size):
        for layout, laid in LAYOUTS.items():
            for name, draw in DRAWN.items():
                x = laid(torch.ones(rows, 4, 3, 2) - 0.5)
                torch.manual_seed(5)
                want = draw(x), torch.rand(2)
                torch.manual_seed(5)
                got = draw(by_rows(x, view.even_sizes(rows))), torch.rand(2)
                if found := difference(want, got):
                    said.append(f"{name} of {rows}, {layout}: {found}")
                if name in KEPT and not is_sharded(got[0]):
                    said.append(f"{name} of {rows}, {layout} has lost its rows")
    return said


@pytest.mark.parametrize("nproc", [2, 3])
def test_dropout_masks_equal_those_of_one_process(nproc):
    said = run_ranks(_by_rows, nproc)
    assert not any(said), said


def two_layers(x: Tensor) -> Tensor:
    torch.manual_seed(6)
    return nn.LSTM(2, 3, 2, dropout=0.5)(x)[0]


SECOND: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda x: F.dropout(x, 0.4),
    "dropout2d": lambda x: F.dropout2d(x[..., None], 0.4),
    "dropout1d": lambda x: F.dropout1d(x, 0.4),
    "alpha": lambda x: F.alpha_dropout(x, 0.4, training=True),
    "filled": lambda x: x.clone().uniform_(),
    "normal": lambda x: torch.randn_like(x),
    "attention": lambda x: F.scaled_dot_product_attention(
        *[x[..., None, :].expand(-1, -1, 3, -1)] * 3, dropout_p=0.3
    ),
    "lstm": two_layers,
    "lstm, batch first": lambda x: nn.LSTM(2, 3, 2, dropout=0.5, batch_first=True)(
        x.transpose(0, 1)
    )[0],
}


def _second(group: Any) -> list[str]:
    view, said = Counting(group), []
    for rows in (9, group.size + 1, group.size):
        # as many steps as a rank has rows
        for steps in {rows // group.size, 5}:
            for name, draw in SECOND.items():
                x = torch.rand(steps, rows, 2)
                drawn = []
                for batch in (x, by_rows(x.clone(), view.even_sizes(rows), 1)):
                    torch.manual_seed(5)
                    drawn.append((draw(batch), torch.rand(2)))
                if found := difference(*drawn, rtol=1e-6):
                    said.append(f"{name} of {rows}, {steps} steps: {found}")
    return said + [f"{name} gathered" for name in view.names]


@pytest.mark.parametrize("nproc", [2, 3])
def test_batch_in_second_dimension(nproc):
    assert run_ranks(_second, nproc) == [[]] * nproc


IMAGES: dict[str, Callable[[Tensor], Tensor]] = {
    "tokens": lambda x: x.transpose(1, 2).reshape(len(x), 4, 2, 3),
    "viewed": lambda x: x.permute(0, 2, 1).view(len(x), 4, 2, 3),
    "unflattened": lambda x: x.transpose(1, 2).unflatten(2, (2, 3)),
    "turned twice": lambda x: x.transpose(1, 2).unsqueeze(2).transpose(2, 3),
    "channels first": lambda x: x.view(len(x), 4, 2, 3),
    "time first": lambda x: x.transpose(0, 1)[..., None],
}


def _of_one_row(group: Any) -> list[str]:
    view, said, x = Counting(group), [], torch.rand(group.size, 6, 4) + 1
    for name, image in IMAGES.items():
        drawn = []
        for batch in (x, by_rows(x.clone(), view.even_sizes(group.size))):
            torch.manual_seed(5)
            large = F.interpolate(image(batch), scale_factor=2)
            drawn.append((F.dropout(F.conv2d(large, torch.ones(3, large.shape[1], 1, 1)), 0.4),))
            drawn[-1] += (torch.rand(2),)
        if found := difference(*drawn):
            said.append(f"{name}: {found}")
    return said


@pytest.mark.parametrize("nproc", [2, 3])
def test_one_row_has_the_memory_order_of_several(nproc):
    assert run_ranks(_of_one_row, nproc) == [[]] * nproc


SINGLE: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "swapped": lambda x: x.transpose(0, 1),
    "expanded": lambda x: x.unsqueeze(0).expand(2, *x.shape),
    "a column expanded": lambda x: x[:, :1].expand(*x.shape),
    "sine of an expanded column": lambda x: x[:, :1].expand(*x.shape).sin(),
    "like an expanded column": lambda x: torch.empty_like(x[:, :1].expand(*x.shape)).fill_(1),
    "recurrent": lambda x: recurrent(x)[0],
    "recurrent, time first": lambda x: recurrent(x.transpose(0, 1).contiguous(), False)[0],
    "product": lambda x: torch.einsum("btc,dc->tdb", x, torch.ones(3, 2)),
    "part of an expanded one": lambda x: x[:, :1].expand(*x.shape)[:, :3],
    "every other column": lambda x: x[:, 1::2],
    "stacked": lambda x: torch.stack([x, x + 1]).sort(-1).values,
    "logical": lambda x: torch.logical_and(x.transpose(0, 1), torch.ones(())).double(),
}


def recurrent(x: Tensor, batch_first: bool = True) -> Any:
    torch.manual_seed(6)
    return nn.GRU(2, 3, batch_first=batch_first)(x)


def _of_single_rows(group: Any) -> list[str]:
    view, said = Counting(group), []
    for sizes in ((1,) * group.size, (2, *(1,) * (group.size - 1))):
        for name, laid in SINGLE.items():
            for draw in ("normal", "dropout", "filled", "exponential"):
                for _ in range(2):  # the first call may show the layout
                    drawn = []
                    x = torch.rand(sum(sizes), 4, 2)
                    for batch in (x, by_rows(x, view.shard_sizes(sizes))):
                        made = laid(batch)
                        torch.manual_seed(5)
                        drawn.append((DRAWN[draw](made), made.stride(), torch.rand(2)))
                    if found := difference(*drawn, rtol=1e-6):
                        said.append(f"{draw} for {name}, {sizes}: {found}")
    return said + [f"{name} gathered" for name in view.names]


@pytest.mark.parametrize("nproc", [2, 3])
def test_single_rows_have_the_layout_that_they_have_in_the_whole(nproc):
    assert run_ranks(_of_single_rows, nproc) == [[]] * nproc


def _own(group: Any) -> Any:
    view = Counting(group)
    view.draws = "own"
    torch.manual_seed(5)
    before = torch.get_rng_state()
    with Draws(view.even_sizes(6), 0):
        first = F.dropout(torch.ones(view.even_sizes(6).local, 50))
        second = F.dropout(torch.ones(view.even_sizes(6).local, 50))
    same = bool(torch.equal(before, torch.get_rng_state()))
    return same, first.flatten().tolist(), second.flatten().tolist()


def test_own_draws_differ_by_rank_and_restore_the_generator():
    (a, first, again), (b, other, _) = run_ranks(_own, 2)
    assert a
    assert b
    assert first != other
    assert first != again
