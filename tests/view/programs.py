"""Random programs on batches that are aliased, written into, expanded and drawn for.

A program keeps a pool of tensors, and each of its steps picks some of them by chance: it makes a
view, writes in place, computes, draws, reads or goes backward. All dimensions have the batch's
size, so that no rule can tell the batch by its size. What a program says is compared between one
process and ranks of unequal sizes:

    python -m tests.view.programs 20000 --seed 1
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # the field's name for it

from tests.support.threads import run_threads
from tests.view.compare import Counting, by_rows, difference

# single rows, too: torch leaves their stride open, by which the whole is drawn for
SIZES = ((3, 3), (2, 1), (4, 2), (2, 2, 1), (3, 0, 2), (2, 2, 2), (1, 1, 1), (2, 1, 1, 1, 1))
ERRORS = (RuntimeError, IndexError, ValueError, TypeError, AttributeError)
# torch refuses to go on after a write that it has no gradient for; ranks need not notice it, as
# they may have kept what was before
REFUSED, REFUSAL = ("modified by an inplace operation", "modified inplace"), "refused"
Pick = random.Random


def part(p: Pick, n: int) -> slice:
    """Some elements of a dimension: all, from an end, or each second."""
    first = p.randrange(n) if n else 0
    some = slice(first, None), slice(None, first + 1), slice(first, first + 2), slice(-2, None)
    return p.choice((slice(None), slice(None, None, 2), *some))


def sliced(x: Tensor, p: Pick) -> Tensor:
    return x[tuple(part(p, n) for n in x.shape[: p.randint(1, max(x.dim(), 1))])]


def element(x: Tensor, p: Pick) -> Tensor:
    return x[tuple(p.choice([0, -1, part(p, n)]) for n in x.shape[: p.randint(1, x.dim())])]


def halves(x: Tensor, p: Pick) -> Tensor:
    return x.view(2, -1, *x.shape[1:])[p.randrange(2)]


VIEWS: dict[str, Callable[[Tensor, Pick], Tensor]] = {
    "flat": lambda x, p: x.view(-1),
    "reshaped": lambda x, p: x.reshape(-1),
    "flattened": lambda x, p: x.flatten(0, 1),
    "part of flat": lambda x, p: x.view(-1)[part(p, x.numel())],
    "every": lambda x, p: x.reshape(-1)[:: p.randint(1, 5)],
    "halves": halves,
    "sliced": sliced,
    "element": element,
    "transposed": lambda x, p: x.transpose(0, p.randint(0, 1)),
    "permuted": lambda x, p: x.permute(*p.sample(range(x.dim()), x.dim())),
    "narrow": lambda x, p: x.narrow(p.randrange(x.dim()), 0, 2),
    "columns": lambda x, p: x[:, part(p, x.shape[1])],
    "diagonal": lambda x, p: x.diagonal(),
    "chunk": lambda x, p: x.chunk(2, p.randrange(2))[-1],
    "split": lambda x, p: x.split(2, p.randrange(2))[0],
    "unbound": lambda x, p: x.unbind(p.randrange(2))[0],
    "new dimension": lambda x, p: x.unsqueeze(p.randint(0, 2)),
    "squeezed": lambda x, p: x.squeeze(),
    "expanded": lambda x, p: x.unsqueeze(0).expand(2, *x.shape),
    "expanded behind": lambda x, p: x.unsqueeze(1).expand(x.shape[0], 2, *x.shape[1:]),
    "a column expanded": lambda x, p: x[:, :1].expand(*x.shape),
    "strided": lambda x, p: x.as_strided((x.shape[0],), (p.randint(1, x.shape[0] + 1),)),
    "same": lambda x, p: x.view(x.shape),
    "contiguous": lambda x, p: x.contiguous(),
    "detached": lambda x, p: x.detach(),
    "data": lambda x, p: x.data,
    "real": lambda x, p: x[..., None].squeeze(-1),
}


def assign(x: Tensor, p: Pick) -> Any:
    x[tuple(part(p, n) for n in x.shape[: p.randint(1, max(x.dim(), 1))])] = p.choice([0.5, 2])


def assign_part(x: Tensor, p: Pick) -> Any:
    k = p.randint(1, max(1, x.shape[0] // 2))
    x[:k] = x[-k:].clone() * 2


def copy_ends(x: Tensor, p: Pick) -> Any:
    x[:2].copy_(x[-2:].clone())


def mask(x: Tensor, p: Pick) -> Any:
    x[x.detach() > 0.3] = 0.1


def turn(x: Tensor, change: Callable[[], Any]) -> Any:
    """Change the shape in place, unless the graph would stay that of the former shape."""
    return change() if torch.is_grad_enabled() or not x.requires_grad else None


WRITES: dict[str, Callable[[Tensor, Pick], Any]] = {
    "transpose_": lambda x, p: turn(x, lambda: x.transpose_(0, p.randint(0, 1))),
    "swapaxes_": lambda x, p: turn(x, lambda: x.swapaxes_(0, -1)),
    "t_": lambda x, p: turn(x, x.t_),
    "squeeze_": lambda x, p: turn(x, x.squeeze_),
    "unsqueeze_": lambda x, p: turn(x, lambda: x.unsqueeze_(p.randint(0, 2))),
    "mul_": lambda x, p: x.mul_(1.5),
    "+=": lambda x, p: x.add_(0.25),
    "tanh_": lambda x, p: x.tanh_(),
    "zero_": lambda x, p: x.zero_(),
    "fill_": lambda x, p: x.fill_(0.75),
    "clamp_": lambda x, p: x.clamp_(-1, 1),
    "masked_fill_": lambda x, p: x.masked_fill_(x.detach() > 0.5, 0.1),
    "index_fill_": lambda x, p: x.index_fill_(p.randrange(2), torch.tensor([0]), 0.3),
    "index_add_": lambda x, p: x.index_add_(0, torch.tensor([0]), torch.ones_like(x[:1])),
    "index_put": lambda x, p: x.__setitem__((torch.tensor([0, -1]), torch.tensor([0, -1])), 0.5),
    "rows": lambda x, p: x[1:3].mul_(2),
    "column": lambda x, p: x[:, 0].mul_(2),
    "one": lambda x, p: x.view(-1)[p.randrange(3)].fill_(1),
    "set one": lambda x, p: x.view(-1).__setitem__(0, 1.0),
    "data at once": lambda x, p: x.data.__setitem__(torch.tensor([0, -1]), 0.5),
    "data, flat": lambda x, p: x.data.view(-1)[:3].fill_(0.25),
    "detached at once": lambda x, p: x.detach().view(-1)[1:4].mul_(3),
    "relu in place": lambda x, p: F.relu(x, inplace=True),
    "copied": lambda x, p: x.copy_(x.flip(0).clone()),
    "filled": lambda x, p: x.normal_(),
    "uniform": lambda x, p: x.uniform_(),
    "assign": assign,
    "assign part": assign_part,
    "copy ends": copy_ends,
    "mask": mask,
}
COMPUTES: dict[str, Callable[[Tensor, Pick], Tensor]] = {
    "clone": lambda x, p: x.clone(),
    "twice": lambda x, p: x * 2,
    "sin": lambda x, p: x.sin(),
    "softmax": lambda x, p: x.softmax(-1),
    "over the batch": lambda x, p: x - x.mean(0),
    "cumsum": lambda x, p: x.cumsum(0),
    "sort": lambda x, p: x.sort(p.randint(0, x.dim() - 1)).values,
    "amax": lambda x, p: x[1:].amax(-1, keepdim=True),
    "product": lambda x, p: (x @ x.mT).tanh(),
    "cat": lambda x, p: torch.cat([x, x * 2]),
    "stack": lambda x, p: torch.stack([x, x.cos()]),
    "flip": lambda x, p: x.flip(0),
    "picked": lambda x, p: x[torch.arange(len(x)), torch.arange(len(x)) % x.shape[1]],
    "like": lambda x, p: torch.zeros_like(x) + x,
}
DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "normal": torch.randn_like,
    "uniform": torch.rand_like,
    "integers": lambda x: torch.randint_like(x, 9),
    # torch draws for integers before it refuses them, ranks do not
    "dropout": lambda x: F.dropout(x if x.is_floating_point() else x.double(), 0.4),
    "bernoulli": lambda x: torch.bernoulli(torch.full_like(x, 0.5)),
    "filled": lambda x: torch.empty_like(x).normal_(),
    "exponential": lambda x: x.detach().clone().exponential_(),
    "multinomial": lambda x: torch.multinomial(x.detach().abs() + 0.1, 2),
}


def ordered(x: Tensor) -> Tensor:
    """A sum that depends on the order of the elements."""
    return (x.reshape(-1).double() * torch.arange(x.numel()).double().cos()).sum()


class Program:
    """A program of some steps, repeated by its seed on any kind of batch."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        p = Pick(seed)
        self.sizes = p.choice(SIZES)
        self.cube = p.random() < 0.2
        self.steps = p.randint(4, 12)
        self.inference = p.random() < 0.1
        self.log: list[str] = []

    def run(self, cut: Callable[[Tensor], Tensor]) -> list[Any]:
        """Run it on batches cut by `cut`; return all that it says."""
        with torch.inference_mode(self.inference):
            return self._run(cut)

    def _run(self, cut: Callable[[Tensor], Tensor]) -> list[Any]:
        p, total = Pick(self.seed + 1), sum(self.sizes)
        shape = (total,) * (3 if self.cube else 2)
        generator = torch.Generator().manual_seed(self.seed)
        whole = torch.randn(shape, generator=generator, dtype=torch.float64)
        self.x, self.w = whole.clone().requires_grad_(), torch.linspace(0.5, 1.5, total).double()
        self.w.requires_grad_()
        torch.manual_seed(self.seed)
        self.said: list[Any] = []
        self.log = []
        kinds = ["graph", "plain", "leaf"]
        # a leaf may be written only without gradients: ranks notice it at its next use alone
        self.has_leaf = "leaf" in (chosen := p.sample(kinds, p.randint(1, 2)))
        self.pool = [self._start(kind, whole, cut) for kind in chosen]
        for _ in range(self.steps):
            self._try(lambda: self._step(p))
        self._end()
        return self.said

    def _start(self, kind: str, whole: Tensor, cut: Callable[[Tensor], Tensor]) -> Tensor:
        if kind == "graph":
            return cut(self.x) * self.w
        batch = cut(whole.clone())
        return batch.requires_grad_() if kind == "leaf" else batch

    def _step(self, p: Pick) -> list[Any]:
        kind = p.choice(["view"] * 4 + ["write"] * 4 + ["compute"] * 3 + ["draw", "read", "back"])
        at = p.randrange(len(self.pool))
        x, quiet = self.pool[at], p.random() < 0.15 or (self.has_leaf and kind == "write")
        quiet &= kind != "view"  # torch refuses to read most of these once their base is written
        table: dict[str, Any] = {"view": VIEWS, "write": WRITES, "compute": COMPUTES, "draw": DRAWS}
        name = p.choice(sorted(table[kind])) if kind in table else kind
        inner = Pick(p.random())
        self.log.append(f"{kind} {name} of {at} {tuple(x.shape)}{' (no_grad)' * quiet}")
        with torch.no_grad() if quiet else nullcontext():
            if kind == "view" or kind == "compute":
                self.pool.append(table[kind][name](x, inner))
            elif kind == "write":
                WRITES[name](x, inner)
            elif kind == "draw":
                drawn = DRAWS[name](x)
                self.said.append(ordered(drawn).item())
                self.pool.append(drawn)
            elif kind == "read":
                self._read(x, inner)
            else:
                self._back(x)
        return []

    def _read(self, x: Tensor, p: Pick) -> None:
        self.said += [x.double().sum().item(), x.requires_grad, tuple(x.shape), x.is_leaf]
        listed = p.choice([x.tolist, x[0].tolist, lambda: float(x.max())])()
        self.said.append(torch.tensor(listed, dtype=torch.float64))

    def _back(self, x: Tensor) -> None:
        ordered(x.sin()).backward(retain_graph=True)

    def _end(self) -> None:
        for x in self.pool:
            self._try(lambda x=x: [x.requires_grad, x.detach().clone()])
        self.said.append(torch.rand(1).item())
        graphs = [x for x in self.pool if x.requires_grad]
        if graphs:
            self._try(lambda: [sum(ordered(x.sin()) for x in graphs).backward()])
        for x in self.pool:
            self._try(lambda x=x: [x.grad.clone()] if x.is_leaf and x.grad is not None else [])

    def _try(self, act: Callable[[], list[Any]]) -> None:
        try:
            self.said += act()
        except ERRORS as error:
            self.log.append(f"    {type(error).__name__}: {str(error)[:150]}")
            refused = any(words in str(error) for words in REFUSED)
            self.said.append(REFUSAL if refused else type(error).__name__)


def check(seed: int) -> str | None:
    """Return how a program on ranks differs from one process; None if it does not."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # for functions of integers, too
    try:
        return _check(seed)
    finally:
        torch.set_default_dtype(before)


def _check(seed: int) -> str | None:
    program = Program(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = program.run(lambda x: x)
        gradients = [x.grad for x in (program.x, program.w)]

        def here(group: Any) -> str | None:
            view, mine = Counting(group), Program(seed)
            got = mine.run(lambda x: by_rows(x, view.shard_sizes(mine.sizes)))
            for at, (a, b) in enumerate(zip(want, got, strict=False)):
                if REFUSAL in [said for said in (a, b) if isinstance(said, str)]:
                    return None
                if isinstance(a, float) and isinstance(b, float) and abs(a - b) < 1e-9:
                    continue
                if said := difference(a, b, 1e-8):
                    return (
                        f"said {at}: {said}\n"
                        + "\n".join(mine.log)
                        + "\n  alone:\n"
                        + "\n".join(program.log)
                    )
            if len(want) != len(got):
                return f"{len(got)} values instead of {len(want)}\n" + "\n".join(mine.log)
            for name, a, x in zip("xw", gradients, (mine.x, mine.w), strict=True):
                zero = torch.zeros_like(x)
                b = group.all_reduce((zero if x.grad is None else x.grad).clone()) / group.size
                if said := difference(zero if a is None else a, b, 1e-8):
                    return f"gradient of {name}: {said}\n" + "\n".join(mine.log)
            return None

        try:
            found = run_threads(here, len(program.sizes))
        except Exception as error:
            if REFUSAL in [said for said in want if isinstance(said, str)]:
                return None  # one rank refuses it, and others wait: an error as well
            return f"{type(error).__name__}: {error}\n" + "\n".join(program.log)
    return next((said for said in found if said), None)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most", type=int, default=10, help="end after so many differences")
    options = parser.parse_args()
    begin, bad = time.monotonic(), 0
    for k in range(options.count):
        said = check(options.seed + k)
        if said is not None:
            bad += 1
            print(f"--- {options.seed + k} {Program(options.seed + k).sizes}: {said}", flush=True)
            if bad >= options.most:
                break
    print(f"{k + 1} programs, {bad} differ, {time.monotonic() - begin:.0f} s")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
