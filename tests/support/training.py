"""Training functions, run in one process and inside sessions on ranks: all see the same numbers."""

from __future__ import annotations

import faulthandler
import inspect
import math
import pickle
import random
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.data import DataLoader, Sampler, TensorDataset

from autoddp.options import Options
from autoddp.process.session import session
from autoddp.report import Report
from autoddp.view import full
from tests.support.ranks import run_ranks

# Python 3.12: gloo has threads, as OpenMP in one process
FORKS = "is multi-threaded, use of fork() may"
HANGS = 240  # seconds after which every rank tells where it is


@dataclass
class Seen:
    """What one function gave on one rank."""

    value: Any = None
    error: str = ""
    warned: set[str] = field(default_factory=set)
    decisions: dict[str, list[str]] = field(default_factory=dict)  # by kind: "where: what"

    def said(self, kind: str, *words: str) -> bool:
        """Whether a decision of this kind holds all these words."""
        return any(all(word in line for word in words) for line in self.decisions.get(kind, ()))


# of three ranks, README's own command runs a few tests only
TWO_OR_THREE = pytest.mark.parametrize("nproc", [2, pytest.param(3, marks=pytest.mark.slow)])


class Runs(dict[int, Any]):
    """What was seen on so many ranks, run when it is first asked for."""

    def __init__(self, run: Callable[[int], Any]) -> None:
        super().__init__()
        self.run = run

    def __missing__(self, nproc: int) -> Any:
        self[nproc] = self.run(nproc)
        return self[nproc]


class Scripts(dict[str, Callable[..., Any]]):
    """Functions by name; as a decorator it adds one."""

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        self[function.__name__] = function
        return function

    def run(self, nproc: int, nodes: tuple[int, ...] = (), **options: Any) -> dict[str, list[Seen]]:
        """Each in a session of its own, in the same ranks; by name, in rank order."""
        given = (dict(self), Options(**{"placement": "sharded"} | options))
        ranks = [
            *map(pickle.loads, run_ranks(_each, nproc, *given, timeout=HANGS + 5, nodes=nodes))
        ]
        return {name: [seen[name] for seen in ranks] for name in self}


def on_ranks(function: Callable[..., Any], nproc: int = 2, **options: Any) -> list[Any]:
    """What `function` returns in a session on each rank; with 1, in one process."""
    found = Scripts(one=function).run(nproc, **options)["one"]
    for rank, seen in enumerate(found):
        assert not seen.error, f"rank {rank} of {nproc}: {seen.error}"
    return [seen.value for seen in found]


def _each(group: Any, scripts: dict[str, Any], options: Options) -> bytes:
    """Pickled here: tensors in a pipe would be shared with a process that is gone."""
    faulthandler.dump_traceback_later(HANGS, file=sys.__stderr__)
    return pickle.dumps(
        {name: _seen(group, function, options) for name, function in scripts.items()}
    )


def _seen(group: Any, function: Any, options: Options) -> Seen:
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    report, seen = Report(), Seen()
    warnings.simplefilter("always")
    with (
        warnings.catch_warnings(record=True) as caught,
        session(group.world, options, group, report) as run,
    ):
        try:
            value = function(run) if inspect.signature(function).parameters else function()
            seen.value = tree_map(_plain, value)
        except Exception as error:
            seen.error = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
    seen.warned = {str(w.message)[:60] for w in caught if FORKS not in str(w.message)}
    for decision in report.decisions.values():
        seen.decisions.setdefault(decision.kind, []).append(f"{decision.where}: {decision.what}")
    return seen


def _plain(x: Any) -> Any:
    return full(x).detach().clone() if isinstance(x, Tensor) else x


def assert_same(want: Any, got: Any, close: float = 1e-9) -> None:
    """Structure and values; numbers within rounding."""
    ours, theirs = tree_flatten(want), tree_flatten(got)
    assert ours[1] == theirs[1], f"{got} instead of {want}"
    for place, (a, b) in enumerate(zip(ours[0], theirs[0], strict=True)):
        if isinstance(a, Tensor):
            torch.testing.assert_close(
                b,
                a,
                rtol=close,
                atol=close / 100,
                equal_nan=True,
                msg=lambda m, p=place: f"value {p}: {m}",
            )
        elif isinstance(a, float):
            same = math.isclose(a, b, rel_tol=close, abs_tol=close / 100) or (a != a and b != b)
            assert same, f"value {place}: {b} instead of {a}"
        else:
            assert type(a) is type(b), f"value {place}: {b!r} instead of {a!r}"
            assert a == b, f"value {place}: {b!r} instead of {a!r}"


def assert_as_alone(alone: Seen, ranks: list[Seen], close: float = 1e-9) -> None:
    """Every rank gave what one process gave."""
    assert not alone.error, alone.error
    for rank, seen in enumerate(ranks):
        assert not seen.error, f"rank {rank} of {len(ranks)}: {seen.error}"
        assert seen.warned <= alone.warned, f"warned of on ranks only: {seen.warned - alone.warned}"
        assert_same(alone.value, seen.value, close)


# ---- what training functions are made of


def rows(count: int = 22, width: int = 5, classes: int = 3) -> TensorDataset:
    """A small data set in memory."""
    return TensorDataset(torch.randn(count, width), torch.randint(classes, (count,)))


class DrawsBetween(Sampler[int]):
    """A sampler that draws when it is asked for the next index."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        for _ in range(self.count):
            yield int(torch.randint(self.count, ()))


def batches(count: int = 22, size: int = 8, shuffle: bool = True, **given: Any) -> DataLoader[Any]:
    """The last batch is short, and no size divides by the ranks."""
    return DataLoader(rows(count), size, shuffle=shuffle, **given)


def mlp(width: int = 5, classes: int = 3) -> nn.Module:
    """Plain and row-wise."""
    return nn.Sequential(nn.Linear(width, 7), nn.Tanh(), nn.Linear(7, classes))


def sgd(model: nn.Module, rate: float = 0.1, **given: Any) -> torch.optim.Optimizer:
    """The optimizer."""
    return torch.optim.SGD(model.parameters(), rate, **given)


def train(
    model: nn.Module,
    loader: Any,
    epochs: int = 1,
    optimizer: Any = None,
    loss: Any = F.cross_entropy,
) -> list[float]:
    """The loop that everybody writes; the losses."""
    optimizer = optimizer or sgd(model)
    losses = []
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            value = loss(model(x), y)
            value.backward()
            optimizer.step()
            losses.append(value.item())
    return losses


def weights(*models: nn.Module) -> list[Tensor]:
    """Parameters and buffers."""
    return [x.detach().clone() for model in models for x in model.state_dict().values()]


def grads(*models: nn.Module) -> list[Tensor | None]:
    """What `.grad` holds."""
    return [
        None if p.grad is None else p.grad.detach().clone() for m in models for p in m.parameters()
    ]
