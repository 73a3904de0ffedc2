"""Batches in blocks, as from (T, B) flattened to (T*B), equal the whole and stay sharded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # the field's name for it

from autoddp.view import is_sharded
from tests.support.ranks import run_ranks
from tests.view.compare import by_rows, difference
from tests.view.test_rows import installed

TIME, WIDTH = 3, 4


class Draws(nn.Module):
    def __init__(self, last: Callable[[Tensor], Tensor] = lambda x: x) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.net = nn.Sequential(nn.Linear(WIDTH, 6), nn.BatchNorm1d(6), nn.Dropout(0.4), nn.ReLU())
        self.last = last

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.net(x))


def loss(x: Tensor) -> Any:
    labels = torch.arange(len(x)) % WIDTH
    labels[1] = -100
    weights = torch.linspace(0.5, 1, WIDTH)
    return (
        F.cross_entropy(x, labels),
        F.cross_entropy(x, labels, weights),
        F.mse_loss(x, torch.ones_like(x)),
    )


def written(x: Tensor) -> Any:
    flat = x.view(-1, WIDTH)
    flat.mul_(2)
    x[1].add_(1)
    flat[4] = 9
    return x, flat, torch.from_numpy(flat.numpy().copy()), x.sum()


def not_a_view(x: Tensor) -> Any:
    swapped = x.transpose(0, 1)
    try:
        swapped.view(-1, WIDTH)
    except RuntimeError as error:
        said = str(error)[:20]
    flat = swapped.reshape(-1, WIDTH)
    flat.mul_(2)
    return said, flat, x


def writing(x: Tensor) -> Any:
    flat, layer = x.reshape(-1, WIDTH), nn.Sequential(nn.ReLU(inplace=True), nn.Linear(WIDTH, 2))
    nn.init.constant_(layer[1].weight, 0.1), nn.init.zeros_(layer[1].bias)
    return layer(flat), flat, x


def back(x: Tensor) -> Any:
    flat = x.reshape(-1, WIDTH)
    apart = flat.view(TIME, -1, WIDTH)
    return (
        apart[0],
        flat.view(-1, 2),
        flat.view(-1, 2).view(TIME, -1, 2),
        flat.view(-1).view(-1, WIDTH),
        x.flatten(),
    )


def gradient(x: Tensor) -> Any:
    x.requires_grad_()
    (x.reshape(-1, WIDTH)[2:9] ** 3).sum().backward()
    flat = (x * 2).flatten(0, 1)
    flat.register_hook(lambda g: g * torch.arange(float(len(g)))[:, None])
    (flat.sin() * torch.arange(float(len(flat)))[:, None]).sum().backward()
    return x.grad


def learned(x: Tensor) -> list[Tensor]:
    """Batches with a gradient; others with few dimensions are gathered."""
    return [each * torch.ones(WIDTH, requires_grad=True) for each in x]


def in_a_loop(x: Tensor) -> Any:
    out = torch.empty(0, dtype=x.dtype)
    for each in learned(x):
        out = torch.cat((out, each))
    return Draws()(out)


def parts_written(x: Tensor) -> Any:
    joined = torch.cat([x[0][..., None], x[1][..., None]])
    first, second = joined.chunk(2)
    first.mul_(2)
    joined[8] = 5
    return first, second, joined, x


def parts_gradient(x: Tensor) -> Any:
    x.requires_grad_()
    first, second = torch.cat([x[0], x[1] * 2]).sin().chunk(2)
    ((first - second) ** 2 * torch.arange(7.0)[:, None]).sum().backward()
    return x.grad


FREE: dict[str, Callable[[Tensor], Any]] = {
    "pointwise": lambda x: x.view(-1, WIDTH) * torch.arange(float(WIDTH)) + x.flatten(0, 1),
    "with the whole": lambda x: x.view(-1, WIDTH) * torch.arange(float(x.numel())).view(-1, WIDTH),
    "softmax": lambda x: x.reshape(-1, WIDTH).softmax(-1).argmax(1),
    "sums": lambda x: (x.view(-1, WIDTH).sum(), x.view(-1).mean(), x.view(-1, WIDTH).sum(0)),
    "loss": lambda x: loss(x.reshape(-1, WIDTH)),
    "there and back": back,
    "dropout": lambda x: F.dropout(x.reshape(-1, WIDTH), 0.5),
    "noise": lambda x: torch.randn_like(x.reshape(-1, WIDTH)),
    "module": lambda x: Draws()(x.reshape(-1, WIDTH)),
    "joined": lambda x: Draws()(torch.cat(learned(x)[:2], dim=0)),
    "joined and apart": lambda x: Draws()(torch.cat(tuple(learned(x)))).chunk(3),
    "apart by sizes": lambda x: torch.cat(learned(x)).split([7, 14]),
    "apart by one size": lambda x: torch.split(torch.cat(learned(x), -2), 7),
    "images": lambda x: torch.cat([x[0][..., None], x[1][..., None]]).sin().chunk(2),
    "joined once more": lambda x: (
        torch.cat([torch.cat(learned(x)[:2]), learned(x)[2]]).chunk(3)[1] + x[1]
    ),
    "in a loop": in_a_loop,
    "classes of both": lambda x: F.cross_entropy(
        torch.cat(learned(x)[:2]), torch.arange(14) % WIDTH
    ),
    "deeper": lambda x: (
        x.unsqueeze(0).repeat(2, 1, 1, 1).view(-1, WIDTH).view(2 * TIME, -1, WIDTH)[1]
    ),
}
COSTLY: dict[str, Callable[[Tensor], Any]] = {
    "written": written,
    "not a view": not_a_view,
    "writing module": writing,
    "some rows": lambda x: (
        x.view(-1, WIDTH)[2:5],
        x.view(-1, WIDTH).sort(0)[0],
        x.view(-1, WIDTH).tolist(),
    ),
    "coupling module": lambda x: Draws(lambda y: y - y.mean(0))(x.reshape(-1, WIDTH)),
    "neighbours": lambda x: Draws(lambda y: y + 1e-9 * y.roll(1, 0))(x.reshape(-1, WIDTH)),
    "gradient": gradient,
    "parts written": parts_written,
    "gradient of parts": parts_gradient,
    "other parts": lambda x: torch.cat([x[0], x[1]]).split([5, 9]) + x[0].chunk(2),
    "uneven chunks": lambda x: torch.cat([x[0], x[1]]).chunk(3),
    "with a whole": lambda x: torch.cat([x[0], torch.ones(7, WIDTH)]),
    "another type": lambda x: torch.cat([torch.empty(0, dtype=torch.float32), x[0], x[0].float()]),
}


def trained(deed: Callable[[Tensor], Any], batch: Callable[[Tensor], Tensor]) -> Any:
    """The result, and the gradient of a weight."""
    torch.manual_seed(0)
    x = torch.randn(TIME, 7, WIDTH)
    out = deed(batch(x.clone()))
    after = torch.rand(2)  # the generator is where one process has it
    weight = torch.ones(WIDTH, requires_grad=True)
    got = deed(batch(x.clone()) * weight) if deed is FREE["loss"] else ()
    for one in got:
        one.backward(retain_graph=True)
    return out, after, weight.grad


def _same(group: Any) -> list[str]:
    torch.set_default_dtype(torch.float64)
    deeds, said = FREE | COSTLY, []
    want = {name: trained(deed, lambda x: x) for name, deed in deeds.items()}
    with installed(group) as view:
        for name, deed in deeds.items():
            view.names.clear()
            got = trained(deed, lambda x: by_rows(x, view.even_sizes(x.shape[1]), 1))
            if name in FREE and view.names:
                said.append(f"{name} gathers: {view.names}")
            if found := difference(want[name], got):
                said.append(f"{name}: {found}")
        module = Draws()(
            by_rows(torch.randn(TIME, 7, WIDTH), view.even_sizes(7), 1).view(-1, WIDTH)
        )
        said += (
            [] if is_sharded(module) and module.sizes.blocks == TIME else ["a module is not split"]
        )
    return said


@pytest.mark.parametrize("nproc", [2, 3])
def test_the_result_equals_that_of_the_whole_batch(nproc):
    assert run_ranks(_same, nproc) == [[]] * nproc
