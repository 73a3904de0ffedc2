"""What a script may do with a batch (write, hooks, gradients), and the collectives it needs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autoddp.comm.world import World
from autoddp.effects.run import Run
from autoddp.options import Options
from autoddp.patching import Installation
from autoddp.training.gradients import Gradients
from autoddp.training.modules import Modules
from tests.support.ranks import run_ranks
from tests.view.compare import Counting, by_rows, difference


@contextmanager
def installed(group: Any) -> Iterator[Counting]:
    """Install the features of the view, as in a session."""
    torch.set_default_dtype(torch.float64)
    warnings.simplefilter("ignore")
    view = Counting(group)
    run = Run(World(group.rank, group.size, group.rank, group.size), Options(), group, view)
    with Installation([Modules(run), Gradients(run)]):
        yield view


def written_after(x: Tensor) -> Any:
    view = x[:, 1:]
    x[0] = 0
    return x, view, view.sum()


def row_then_mul(x: Tensor) -> Any:
    x[3].mul_(2)
    return x, x.sum(0)


def whole_around(x: Tensor) -> Any:
    before = x[2].clone()
    x.add_(1)
    x[2] = 7
    x.mul_(2)
    return before, x, x[2], x.max()


def through_flat(x: Tensor) -> Any:
    flat = x.view(-1)
    flat[5] = 100
    flat.neg_()
    return x, flat, x[:, 1]


def masked(x: Tensor) -> Any:
    x[x > 0] = 0
    x[:, 0] = torch.arange(float(len(x)))
    x[1:3] += 5
    return x, torch.from_numpy(x.numpy().copy()), x.tolist()


def no_grad_first(x: Tensor) -> Any:
    x.requires_grad_()
    with torch.no_grad():
        seen = x.sort(0)[0].sum()
    y = x.sort(0)[0][:2].sum() * seen
    y.backward()
    return seen, x.grad


def second(x: Tensor) -> Any:
    x.requires_grad_()
    (g,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    (h,) = torch.autograd.grad((g * x).sum(), x)
    (k,) = torch.autograd.grad(torch.cdist(x, x[:2] + 1).sum(), x, create_graph=True)
    try:
        (m,) = torch.autograd.grad(k.pow(2).sum(), x)
    except NotImplementedError as error:  # torch 2.11 has no second derivative of it
        m = str(error)
    return g, h, k, m


def retained(x: Tensor) -> Any:
    x.requires_grad_()
    y = x * 2
    y.retain_grad()
    (y**2).mean().backward()
    found = [x.grad.clone(), y.grad.clone()]
    x.grad.zero_()
    x.sum().backward()
    found.append(x.grad.clone())
    x.grad = None
    return found, x.grad


def asked_twice(x: Tensor) -> Any:
    x.requires_grad_()
    x.requires_grad_(False)
    x.requires_grad_()
    y = x * 2
    y.retain_grad()
    y.retain_grad()
    (y**2).mean().backward()
    return x.grad, y.grad


def given_grad(x: Tensor) -> Any:
    x.requires_grad_()
    x.grad = torch.ones(x.shape)
    x.sum().backward()
    y = x.detach()
    y.data = torch.arange(float(y.numel())).view(y.shape)
    return x.grad, y, y.sum()


def hooked(x: Tensor) -> Any:
    x.requires_grad_()
    seen: list[Any] = []
    y = x * 3
    y.register_hook(lambda g: seen.append(g * 1))
    y.register_hook(lambda g: g * 2)
    (y**2).sum().backward()
    return seen, x.grad


def of_parameters(x: Tensor) -> Any:
    torch.manual_seed(0)
    net = nn.Linear(x.shape[1], 3)
    seen: list[Any] = []
    net.weight.register_hook(lambda g: seen.append(g.clone()))
    out = net(x).tanh()
    grads = torch.autograd.grad(
        out.mean(), list(net.parameters()), retain_graph=True, create_graph=True
    )
    sum(g.pow(2).sum() for g in grads).backward()
    return grads, [p.grad for p in net.parameters()], seen


def seeds(x: Tensor) -> Any:
    x.requires_grad_()
    y = x**2
    y.backward(torch.arange(float(x.numel())).view(x.shape))
    first = x.grad.clone()
    (x * 3).backward(x.detach() * 2)
    return first, x.grad


def adversary(x: Tensor) -> Any:
    x.requires_grad = True
    F.mse_loss(x.tanh(), torch.zeros_like(x)).backward()
    return x + 0.1 * x.grad.sign(), x.grad.abs().max(), x.is_leaf


DEEDS: list[Callable[[Tensor], Any]] = [
    written_after, row_then_mul, whole_around, through_flat, masked, no_grad_first, second,
    retained, asked_twice,
    given_grad, hooked, of_parameters, seeds, adversary,
]  # fmt: skip


def batch_of(rows: int) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(rows, 5)


def _deeds(group: Any) -> list[str]:
    torch.set_default_dtype(torch.float64)
    said = []
    for rows in (7, 6, 4):
        want = [deed(batch_of(rows)) for deed in DEEDS]
        with installed(group) as view:
            for deed, one in zip(DEEDS, want, strict=True):
                found = difference(one, deed(by_rows(batch_of(rows), view.even_sizes(rows))), 1e-10)
                if found:
                    said.append(f"{deed.__name__} of {rows}: {found}")
    return said


@pytest.mark.parametrize("nproc", [2, 3])
def test_uses_of_a_batch(nproc):
    said = run_ranks(_deeds, nproc, timeout=240)
    assert not any(said), said


def test_pending_sums_share_one_all_reduce():
    """There is no all-reduce until a sum is read, and then one for all pending sums."""
    assert run_ranks(_lazy, 2) == [([], 1, 1, 2)] * 2


def _lazy(group: Any) -> Any:
    view, calls = Counting(group), []
    plain = group.all_reduce
    group.all_reduce = lambda *a, **k: calls.append(1) or plain(*a, **k)
    x = by_rows(torch.arange(12.0).view(6, 2).requires_grad_(), view.even_sizes(6))
    loss = 2 * x.mean() + F.mse_loss(x, x * 2) / 3 - x.sum()
    other = x.sum() * 2
    before = list(calls)
    assert float(loss.detach()) == pytest.approx(11 + 506 / 12 / 3 - 66)
    first = len(calls)
    assert other.item() == 132
    second = len(calls)
    x.sum().item()
    return before, first, second, len(calls)


LOSSES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "list": lambda o, x, y: sum(v.sum() for v in o) / len(o),
    "hash": lambda o, x, y: {o: 1}[o] * o.mean(),
    "bool": lambda o, x, y: o.mean() if (o > -100).all() else o.sum(),
    "outer": lambda o, x, y: (o[:, None] - o[None]).add(1e-3).norm(dim=2).mean(),
    "categorical": lambda o, x, y: -torch.distributions.Categorical(logits=o).log_prob(y).mean(),
    "normal": lambda o, x, y: torch.distributions.kl_divergence(
        torch.distributions.Normal(o, 1.0), torch.distributions.Normal(0.0, 1.0)
    ).mean(),
    "drawn": lambda o, x, y: torch.distributions.Normal(o, 1.0).rsample().sin().mean(),
    "gaussian": lambda o, x, y: F.gaussian_nll_loss(o, x[:, :4], torch.ones_like(o)),
    "mask": lambda o, x, y: o[y == 1].sum() + o[y > 1].mean(),
    "scatter": lambda o, x, y: torch.zeros(4, 4).index_add(0, y, o).pow(2).mean(),
    "scaled": lambda o, x, y: (o / o.detach().abs().max()).mean(),
    "casts": lambda o, x, y: o.to(torch.complex128).abs().mean().double(),
}


def _trained(kind: str, batch: Callable[[Tensor], Tensor]) -> Any:
    torch.manual_seed(0)
    data = torch.randn(33, 20)
    net = nn.Sequential(nn.Linear(20, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 4))
    optimizer, log = torch.optim.SGD(net.parameters(), 0.1), []
    for x in data.split(11):
        x, y = batch(x), batch(x[:, :4].argmax(1))
        loss = LOSSES[kind](net(x), x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.append(loss.item())
    return log, [p.detach() for p in net.parameters()], net[1].running_var.clone()


def _losses(group: Any) -> list[str]:
    torch.set_default_dtype(torch.float64)
    want = {k: _trained(k, lambda x: x) for k in LOSSES}
    with installed(group) as view:
        got = {k: _trained(k, lambda x: by_rows(x, view.even_sizes(len(x)))) for k in LOSSES}
    return [f"{k}: {said}" for k in LOSSES if (said := difference(want[k], got[k]))]


@pytest.mark.parametrize("nproc", [2, 3])
def test_losses_train_as_in_one_process(nproc):
    said = run_ranks(_losses, nproc, timeout=100)
    assert not any(said), said
