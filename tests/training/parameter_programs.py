"""Random programs on parameters that are viewed, copied, written into and trained.

A program has a model of some parameters, an optimizer, and a pool of tensors: each step picks some
of them by chance. What a program says is compared between one process and ranks that hold shards:

    python -m tests.training.parameter_programs 2000 --seed 1
"""

from __future__ import annotations

import argparse
import copy
import io
import random
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from autoddp.errors import BadInput
from tests.support.training import on_ranks
from tests.view.compare import difference
from tests.view.programs import COMPUTES, DRAWS, ERRORS, REFUSAL, REFUSED, VIEWS, WRITES, ordered

Pick = random.Random
SHAPES = ((5, 3), (3, 5), (4, 4), (2, 3, 2), (7, 1), (1, 6), (5,), (1,), (), (2, 2, 2, 3))
SHARED = "refer to a single memory location"  # on ranks they do not
AT_ONCE = 50  # programs in one start of ranks


def has_graph(x: Tensor) -> bool:
    """Whether it was computed of others; torch refuses to tell of some."""
    try:
        return x.grad_fn is not None
    except RuntimeError:
        return True


class Net(nn.Module):
    """Parameters, each of which meets the input."""

    def __init__(self, p: Pick) -> None:
        super().__init__()
        shapes = [p.choice(SHAPES) for _ in range(p.randint(1, 3))]
        self.ps = nn.ParameterList(nn.Parameter(torch.randn(shape)) for shape in shapes)
        if p.random() < 0.2:
            self.ps[0].requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return sum(ordered((q * x).sin()) for q in self.ps)


def saved(x: Any) -> Any:
    """What a file of it holds."""
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


# of two tensors of one shape
PAIRS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "copy_": lambda x, y: x.copy_(y),
    "lerp_": lambda x, y: x.lerp_(y, 0.25),
    "add_": lambda x, y: x.add_(y, alpha=0.5),
    "data set": lambda x, y: setattr(x, "data", y.detach().clone()),
    "data copied": lambda x, y: x.data.copy_(y),
    "foreach": lambda x, y: torch._foreach_add_([x], [y], alpha=0.5),
    "grad set": lambda x, y: setattr(x, "grad", y.detach().clone()),
    "data scaled": lambda x, y: x.data.__imul__(y.data.tanh()),
}
MADE: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "sum": lambda x, y: x + y,
    "product": lambda x, y: x.sin() * y.sin(),
    "where": lambda x, y: torch.where(x > 0, x, y),
    "stacked": lambda x, y: torch.stack([x, y]),
    "flat": lambda x, y: torch.cat([x.reshape(-1), y.reshape(-1)]),
    "maximum": torch.maximum,
    "lists": lambda x, y: torch._foreach_sub([x, y], [y, x])[1],
    "norms": lambda x, y: torch.stack(torch._foreach_norm([x, y])),
}
OTHERS: dict[str, Callable[[Tensor], Any]] = {
    "sum of all": lambda x: x.sum().sin() * x,
    "mean of all": lambda x: x - x.mean(),
    "norm": lambda x: x / (1 + x.norm()),
    "vector norm": lambda x: x / (1 + torch.linalg.vector_norm(x, 3)),
    "matrix": lambda x: x.reshape(x.shape[0], -1) @ x.reshape(x.shape[0], -1).T,
    "deep copy": copy.deepcopy,
    "parameter": lambda x: nn.Parameter(x.detach().clone()),
    "same memory": lambda x: nn.Parameter(x.data),
    "saved": lambda x: saved(x.detach()),
    "to": lambda x: x.to(torch.float32).double(),
    "numpy": lambda x: torch.from_numpy(x.detach().numpy().copy()),
    "empty": lambda x: torch.zeros_like(x, requires_grad=x.requires_grad),
}


class Program:
    """A program of some steps, repeated by its seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.said: list[Any] = []
        self.log: list[str] = []

    def run(self) -> list[Any]:
        """Run it; return all that it says."""
        p = Pick(self.seed)
        torch.manual_seed(self.seed)
        self.net = Net(p).to("cpu")
        make = p.choice((torch.optim.SGD, torch.optim.AdamW, torch.optim.Adagrad))
        self.optimizer = make(self.net.parameters(), lr=0.1)
        self.log.append(f"{make.__name__} of {[tuple(q.shape) for q in self.net.ps]}")
        self.pool: list[Tensor] = [*self.net.ps]
        for _ in range(p.randint(4, 14)):
            self._try(lambda: self._step(p))
        self._end()
        return self.said

    def _step(self, p: Pick) -> None:
        kinds = ["view"] * 3 + ["write"] * 3 + ["pair"] * 3 + ["made"] * 2 + ["compute"] * 2
        kind = p.choice([*kinds, "other", "other", "draw", "read", "back", "back", "train", "own"])
        at = p.randrange(len(self.pool))
        x, inner = self.pool[at], Pick(p.random())
        tables: dict[str, Any] = {
            "view": VIEWS,
            "write": WRITES,
            "pair": PAIRS,
            "made": MADE,
            "compute": COMPUTES,
            "other": OTHERS,
            "draw": DRAWS,
        }
        name = p.choice(sorted(tables[kind])) if kind in tables else kind
        quiet = p.random() < (0.7 if kind in ("write", "pair") else 0.1)
        quiet &= kind not in ("view", "own")  # torch refuses to read these once others are written
        self.log.append(f"{kind} {name} of {at} {tuple(x.shape)}{' (no_grad)' * quiet}")
        with torch.no_grad() if quiet else nullcontext():
            if kind in ("view", "compute"):
                self.pool.append(tables[kind][name](x, inner))
            elif kind == "write":
                WRITES[name](x, inner)
            elif kind in ("pair", "made"):
                y = p.choice([y for y in self.pool if y.shape == x.shape])
                if name == "data set" and any(map(has_graph, self.pool)):
                    return  # what the graph has saved would be the new data
                out = tables[kind][name](x, y)
                self.pool += [out] * (kind == "made")
            elif kind in ("other", "draw"):
                self.pool.append(tables[kind][name](x))
            else:
                getattr(self, f"_{kind}")(x, inner)

    def _read(self, x: Tensor, p: Pick) -> None:
        self.said += [x.double().sum().item(), x.requires_grad, tuple(x.shape), x.is_leaf]
        text = str(x.detach() if x._is_view() else x)  # a write gives a view another node
        self.said += [x.stride(), x.is_contiguous(), type(x).__name__, text]

    def _back(self, x: Tensor, p: Pick) -> None:
        ordered(x.sin()).backward(retain_graph=True)

    def _train(self, x: Tensor, p: Pick) -> None:
        self.optimizer.zero_grad(set_to_none=p.random() < 0.7)
        loss = self.net(torch.linspace(0.5, 1, 1))
        loss.backward()
        self.said.append(loss.item())
        if p.random() < 0.5:
            self.said.append(nn.utils.clip_grad_norm_(self.net.parameters(), 0.5).item())
        self.optimizer.step()

    def _own(self, x: Tensor, p: Pick) -> None:
        """What belongs to a parameter: its gradient, its data, a state of its optimizer."""
        q = p.choice([*self.net.ps])
        states = [y for y in self.optimizer.state.get(q, {}).values() if isinstance(y, Tensor)]
        self.pool.append(p.choice([q.data, *states, *[q.grad] * (q.grad is not None)]))

    def _end(self) -> None:
        for x in self.pool:
            self._try(lambda x=x: self.said.extend([x.requires_grad, x.detach().clone()]))
        self.said.append(torch.rand(1).item())
        graphs = [x for x in self.pool if x.requires_grad]
        if graphs:
            self._try(lambda: sum(ordered(x.sin()) for x in graphs).backward())
        self._try(self.optimizer.step)
        for x in self.pool:
            self._try(lambda x=x: self.said.append(x.detach().clone()))
            self._try(lambda x=x: self.said.append(x.grad.clone() if x.is_leaf else None))
        self.said += [q.detach().clone() for q in self.net.state_dict().values()]

    def _try(self, act: Callable[[], Any]) -> None:
        try:
            act()
        except (*ERRORS, BadInput) as error:
            self.log.append(f"    {type(error).__name__}: {str(error)[:150]}")
            refused = any(words in str(error) for words in (*REFUSED, SHARED))
            self.said.append(REFUSAL if refused else type(error).__name__)


def run(seeds: range) -> list[tuple[list[Any], list[str]]]:
    """What each program says, and its steps."""
    found = []
    for seed in seeds:
        program = Program(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            said = program.run()
        found.append((said, program.log))
    return found


def unlike(want: list[Any], got: list[Any]) -> str | None:
    """Return how two lists of what a program says differ; None if they do not."""
    for at, (a, b) in enumerate(zip(want, got, strict=False)):
        if (isinstance(a, str) and a == REFUSAL) or (isinstance(b, str) and b == "BadInput"):
            return None  # what a refused backward leaves is not said, and ranks refuse in words
        if isinstance(a, float) and isinstance(b, float) and abs(a - b) < 1e-9:
            continue
        if said := difference(a, b, 1e-8):
            return f"said {at}: {said}"
    return None if len(want) == len(got) else f"{len(got)} values instead of {len(want)}"


def check(seeds: range, nproc: int) -> dict[int, str]:
    """Return how programs on ranks differ from one process, by their seeds."""
    alone = on_ranks(lambda: run(seeds), 1)[0]
    try:
        of_ranks = on_ranks(lambda: run(seeds), nproc, parameters="sharded", hang_timeout=10)
    except AssertionError as error:  # of one of them
        if len(seeds) == 1:
            return {seeds[0]: "\n".join([str(error), *alone[0][1]])}
        each = [check(seeds[n : n + 1], nproc) for n in range(len(seeds))]
        return {seed: said for found in each for seed, said in found.items()}
    found: dict[int, str] = {}
    for ranks in of_ranks:
        for seed, (want, steps), (got, mine) in zip(seeds, alone, ranks, strict=True):
            if said := unlike(want, got):
                found.setdefault(seed, "\n".join([said, *mine, "  alone:", *steps]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--nproc", type=int, default=2)
    parser.add_argument("--most", type=int, default=10, help="end after so many differences")
    options = parser.parse_args()
    begin, bad, end = time.monotonic(), 0, options.seed + options.count
    for first in range(options.seed, end, AT_ONCE):
        for seed, said in check(range(first, min(first + AT_ONCE, end)), options.nproc).items():
            bad += 1
            print(f"--- {seed}: {said}", flush=True)
        if bad >= options.most:
            break
    print(f"{options.count} programs, {bad} differ, {time.monotonic() - begin:.0f} s")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
