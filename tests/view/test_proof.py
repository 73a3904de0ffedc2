"""What is proven row-wise and what is not: both train as one process does, and leave no trace."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.support.ranks import run_ranks
from tests.view.compare import by_rows, difference
from tests.view.test_rows import installed

COUNTED = 0
OUTSIDE: list[Tensor] = []


class Layer(nn.Module):
    """A layer of the test's own: `function(self, x)`."""

    def __init__(self, function: Callable[[Any, Tensor], Any], **state: Any) -> None:
        super().__init__()
        self.inner, self.function = nn.Linear(6, 6), function
        self.__dict__.update(state)

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


class Normed(Layer):
    """One with BatchNorm, and rows that are no batch's."""

    def __init__(self, function: Callable[[Any, Tensor], Any]) -> None:
        super().__init__(function)
        self.norm, self.others = nn.BatchNorm1d(6), nn.Parameter(torch.randn(4, 6))


class Flat(nn.Module):
    def __init__(self, net: nn.Module, *shape: int) -> None:
        super().__init__()
        self.net, self.shape = net, shape

    def forward(self, x: Tensor) -> Tensor:
        out = self.net(x.reshape(len(x), *self.shape))
        return (out[0] if isinstance(out, tuple) else out).flatten(1)


def counts(m: Any, x: Tensor) -> Tensor:
    m.calls += 1
    return m.inner(x)


def remembers(m: Any, x: Tensor) -> Tensor:
    m.seen.append(x.detach().mean().item())
    return m.inner(x)


def counts_globally(m: Any, x: Tensor) -> Tensor:
    global COUNTED
    COUNTED += 1
    return m.inner(x)


def decides(m: Any, x: Tensor) -> Tensor:
    return m.inner(x) if x.mean() > 100 else m.inner(x) * 2


def by_a_buffer(m: Any, x: Tensor) -> Tensor:
    buffer = torch.zeros(2, 2)
    buffer[:, 0] = x.max()
    return m.inner(x) if buffer.max() < 100 else m.inner(x) * 2


def returns_loss(m: Any, x: Tensor) -> Any:
    out = m.inner(x.view(-1, 6))
    return out.view(len(x), -1), out.pow(2).mean()


def by_a_list(m: Any, x: Tensor) -> Tensor:
    return m.inner(x) * (1 if max(x.flatten().tolist()) < 100 else 2)


def by_numpy(m: Any, x: Tensor) -> Tensor:
    return m.inner(x) * (1 if np.asarray(x.detach()).max() < 100 else 2)


def hooked(m: Any, x: Tensor) -> Tensor:
    h = m.inner(x)
    h.register_hook(lambda g: g / g.norm())
    return m.inner(h.tanh())


SPLIT: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(18, 6),
    "mlp": lambda: nn.Sequential(
        nn.Linear(18, 8), nn.GELU(), nn.LayerNorm(8), nn.Dropout(0.3), nn.Linear(8, 6)
    ),
    "cnn": lambda: Flat(
        nn.Sequential(
            nn.Conv2d(1, 4, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout2d(0.3), nn.Conv2d(4, 2, 1)
        ),
        1,
        3,
        6,
    ),
    "lstm": lambda: Flat(nn.LSTM(6, 5, batch_first=True), 3, 6),
    "transformer": lambda: Flat(nn.TransformerEncoderLayer(6, 2, 12, 0.2, batch_first=True), 3, 6),
    "positions": lambda: Flat(Layer(lambda m, x: m.inner(x + torch.arange(3.0)[:, None])), 3, 6),
    "noise": lambda: Flat(Layer(lambda m, x: m.inner(x + torch.randn_like(x))), 3, 6),
}
NOT_SPLIT: dict[str, Callable[[], nn.Module]] = {
    "mean": lambda: Flat(Layer(lambda m, x: m.inner(x - x.mean(0))), 3, 6),
    "size": lambda: Flat(Layer(lambda m, x: m.inner(x / x.size(0))), 3, 6),
    "arange": lambda: Flat(
        Layer(lambda m, x: m.inner(x + torch.arange(float(len(x)))[:, None, None])), 3, 6
    ),
    "counter": lambda: Flat(Layer(counts, calls=0), 3, 6),
    "list": lambda: Flat(Layer(remembers, seen=[]), 3, 6),
    "global": lambda: Flat(Layer(counts_globally), 3, 6),
    "decides": lambda: Flat(Layer(decides), 3, 6),
    "decides by a buffer": lambda: Flat(Layer(by_a_buffer), 3, 6),
    "random": lambda: Flat(Layer(lambda m, x: m.inner(x) * random.random()), 3, 6),
    "numpy": lambda: Flat(Layer(lambda m, x: m.inner(x) * float(np.random.rand())), 3, 6),
    "outside": lambda: Flat(Layer(lambda m, x: m.inner(x) * OUTSIDE[0]), 3, 6),
    "sorted": lambda: Flat(Layer(lambda m, x: m.inner(x.sort(0)[0])), 3, 6),
    "cumsum": lambda: Flat(Layer(lambda m, x: m.inner(x).cumsum(0)), 3, 6),
    "loss inside": lambda: Layer(
        lambda m, x: (m.inner(x.view(-1, 6)).view(len(x), -1), m.inner(x.view(-1, 6)).pow(2).mean())
    ),
    "by a list": lambda: Flat(Layer(by_a_list), 3, 6),
    "by numpy": lambda: Flat(Layer(by_numpy), 3, 6),
    "hook": lambda: Flat(Layer(hooked), 3, 6),
    "no batch": lambda: Layer(lambda m, x: m.inner(x.view(-1, 6)).mean(0)),
}
# of a batch so large that a few of its rows are looked at
LARGE_SPLIT: dict[str, Callable[[], nn.Module]] = {
    "cnn": SPLIT["cnn"],
    "lstm": SPLIT["lstm"],
    "noise": SPLIT["noise"],
    "norm of all steps": lambda: Flat(
        Normed(lambda m, x: m.norm(x.reshape(-1, 6)).view_as(x)), 3, 6
    ),
    "norm, time first": lambda: Flat(
        Normed(lambda m, x: m.norm(x.movedim(1, 0).reshape(-1, 6)).view(3, -1, 6).movedim(0, 1)),
        3,
        6,
    ),
}
LARGE_NOT_SPLIT: dict[str, Callable[[], nn.Module]] = {
    "mean": lambda: Flat(Layer(lambda m, x: m.inner(x - 1e-9 * x.mean(0))), 3, 6),
    "far neighbours": lambda: Flat(Layer(lambda m, x: m.inner(x + 1e-9 * x.roll(8, 0))), 3, 6),
    "groups": lambda: Flat(
        Layer(lambda m, x: m.inner(x - x.view(-1, 4, 18).mean(1).sum(0).view(3, 6))), 3, 6
    ),
    "from a size on": lambda: Flat(
        Layer(lambda m, x: m.inner(x - x.mean(0) if len(x) > 10 else x)), 3, 6
    ),
    "last row": lambda: Flat(Layer(lambda m, x: m.inner(x + 1e-9 * x[-1])), 3, 6),
    "norms of pieces": lambda: Normed(lambda m, x: norms(m, x, max(1, len(x) // 8))),
    "norms of large pieces": lambda: Normed(lambda m, x: norms(m, x, -(-len(x) // 24))),
    "norms of large pieces, by values": lambda: Normed(
        lambda m, x: norms(m, by_value(x), -(-len(x) // 24))
    ),
    "norms of halves": lambda: Normed(lambda m, x: norms(m, x, 2)),
    "norm of every second": lambda: Normed(lambda m, x: m.norm(x[::2, :6]).sum() * 0 + x),
    "norm of others": lambda: Normed(lambda m, x: x[:, :6] @ m.norm(m.others).T),
}
KINDS = SPLIT | NOT_SPLIT | {f"large, {k}": v for k, v in (LARGE_SPLIT | LARGE_NOT_SPLIT).items()}
TOGETHER = {*NOT_SPLIT, *(f"large, {k}" for k in LARGE_NOT_SPLIT)}


def by_value(x: Tensor) -> Tensor:
    """What shapes alone cannot tell."""
    return x + len(torch.ones(3).nonzero())


def norms(m: Any, x: Tensor, pieces: int) -> Tensor:
    return torch.cat([m.norm(piece) for piece in m.inner(x[:, :6]).chunk(pieces)])


def trained(name: str, batch: Callable[[Tensor], Tensor]) -> Any:
    """Three steps, and everything that they leave behind."""
    global COUNTED
    COUNTED = 0
    torch.manual_seed(0), random.seed(0), np.random.seed(0)
    net = KINDS[name]()
    scale = torch.ones((), requires_grad=True)
    OUTSIDE[:] = [scale * 2]
    optimizer, log = torch.optim.SGD(net.parameters(), 0.1), []
    for x in torch.randn(*((144, 18) if name.startswith("large") else (21, 18))).chunk(3):
        out = net(batch(x))
        loss = out[0].sum() + out[1] if isinstance(out, tuple) else out.pow(2).mean()
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()
        log.append(loss.item())
    layer = getattr(net, "net", net)
    left = [getattr(layer, "calls", None), getattr(layer, "seen", None), COUNTED, scale.grad]
    draws = torch.rand(1), random.random(), np.random.rand()
    return (
        log,
        [p.detach() for p in net.parameters()],
        [b.clone() for b in net.buffers()],
        left,
        draws,
    )


def _kinds(group: Any) -> list[str]:
    torch.set_default_dtype(torch.float64)
    said = []
    # large batches are cut alike by any number
    kinds = KINDS if group.size == 2 else SPLIT | NOT_SPLIT
    want = {name: trained(name, lambda x: x) for name in kinds}
    with installed(group) as view:
        for name in kinds:
            view.report.decisions.clear()
            found = difference(want[name], trained(name, lambda x: by_rows(x, view.cut(len(x)))))
            outer = type(KINDS[name]()).__name__
            whole = {d.what for d in view.report.of("whole") if d.where.startswith(f"{outer} ")}
            if found:
                said.append(f"{name}: {found}")
            if bool(whole) != (name in TOGETHER):
                said.append(f"{name} is split: {not whole} {whole}")
    return said


@pytest.mark.parametrize("nproc", [2, 3])
def test_split_or_not_the_result_is_one_process(nproc):
    said = run_ranks(_kinds, nproc, timeout=240)
    assert not any(said), said


def _alike(group: Any) -> Any:
    with installed(group) as view:
        torch.manual_seed(0)
        net = nn.Linear(3, 2)
        rows = by_rows(torch.ones(6, 3), view.cut(6))
        first = net(rows)
        reasons = {d.what for d in view.report.of("whole")}
        view.report.decisions.clear()
        second = net(by_rows(torch.randn(6, 3), view.cut(6)))
        return reasons, len(view.report.of("split")), tuple(first.shape), tuple(second.shape)


def test_rows_that_are_alike_prove_nothing_and_are_asked_again():
    for reasons, split, *_ in run_ranks(_alike, 2):
        assert reasons == {"all rows of the first batch are alike"}
        assert split == 1


def _pairs(group: Any) -> Any:
    """Rows are coupled in pairs; parts of 2 rows keep these together, a cut at row 5 does not."""
    torch.set_default_dtype(torch.float64)

    def run(batch: Callable[[Tensor], Tensor]) -> list[float]:
        torch.manual_seed(0)
        net, log = (
            Layer(lambda m, x: m.inner(x[(torch.arange(len(x)) ^ 1).clamp(max=len(x) - 1)] + x)),
            [],
        )
        for x in torch.randn(18, 6).split([8, 10]):
            net.zero_grad()
            loss = net(batch(x)).pow(3).mean()
            loss.backward()
            log += [loss.item(), net.inner.weight.grad.norm().item()]
        return log

    want = run(lambda x: x)
    with installed(group) as view:
        got = run(lambda x: by_rows(x, view.cut(len(x))))
        return difference(want, got), {d.what for d in view.report.of("whole")}


def test_rows_that_depend_on_their_neighbours_are_seen():
    assert run_ranks(_pairs, 2) == [(None, {"its rows depend on each other"})] * 2


def retained(m: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    h = m.inner(x)
    h.retain_grad()
    return m.inner(h.tanh()), h


def _retained(group: Any) -> Any:
    torch.manual_seed(0)
    net, x = Layer(retained).double(), torch.randn(8, 6, dtype=torch.float64)
    out, h = net(x)
    out.pow(2).mean().backward()
    with installed(group) as view:
        rows, held = net(by_rows(x, view.cut(8)))
        rows.pow(2).mean().backward()
        return difference([out, h.grad], [rows, held.grad])


def test_a_gradient_that_a_forward_retains_is_the_batchs():
    assert run_ranks(_retained, 2) == [None] * 2
