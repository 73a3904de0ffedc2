"""Models of torchvision, timm, Transformers and scripts on N ranks: are the numbers one process's?

    python -m benchmarks.zoo [--models resnet18,"hf gpt2"] [--ranks 2] [--double] [--rounding]
        [--parameters sharded]

Each model (see `models/`) is trained in float64 for three steps, on batches of 9, 9 and 5 rows, by
one process and by N ranks. Every loss, every parameter and every buffer is compared, on each rank,
and so is the state of torch's generator afterwards. The table tells the largest difference,
relative to the largest element of its tensor (or to 0.001, where that is smaller: a key's bias in
attention is all rounding), and which functions needed the whole batch, how often in a step and with
how many bytes.

Transformers computes some losses and norms in float32, whose rounding shows as 1e-7 or less. With
--double that is float64, too, and all differences are of 1e-15 or what a model makes of these.

With --rounding each model is also trained by one process whose parameters begin one unit in the
last place off. How far this one gets tells what rounding alone does to the model: much where
BatchNorm divides by the deviation of a few values.

Processes are forked from one that has imported the libraries.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.data import DataLoader

from autoddp.options import Options
from autoddp.process.session import session
from autoddp.report import Report
from benchmarks.models import BATCH, ROWS, catalogue
from tests.support.ranks import run_ranks

STEPS = -(-ROWS // BATCH)
LEAST = 1e-3  # what a difference is at least compared to


@dataclass(frozen=True)
class Trained:
    """What one process or rank has after training."""

    losses: list[float]
    state: dict[str, np.ndarray]
    generator: bytes
    gathers: dict[str, int]
    bytes: float = 0.0


@dataclass(frozen=True)
class Finding:
    """How far ranks are from one process, and what they gathered in a step."""

    model: str
    difference: float
    at: str
    same_generator: bool
    gathers: dict[str, float]
    bytes: float
    rounding: float | None = None  # the difference that one unit in the last place makes

    def row(self) -> str:
        """The line of the table."""
        names = sorted(self.gathers.items(), key=lambda item: -item[1])
        gathered = ", ".join(f"{name} {count:.3g}" for name, count in names)
        size = f" ({self.bytes / 1024:.1f} KB)" if gathered else ""
        generator = "yes" if self.same_generator else "**no**"
        where = f" ({self.at})" if self.difference > 1e-9 else ""
        rounding = "" if self.rounding is None else f" {self.rounding:.1e} |"
        difference = f"{self.difference:.1e}{where}"
        return f"| {self.model} | {difference} |{rounding} {generator} | {gathered}{size} |"


def nudge(net: torch.nn.Module) -> None:
    """Set each parameter off by one unit in the last place, up or down."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for x in net.parameters():
            signs = torch.randint(2, x.shape, generator=generator) * 2 - 1
            x.mul_(1 + signs * torch.finfo(x.dtype).eps)


def train(name: str, nudged: bool = False) -> tuple[list[float], dict[str, np.ndarray], bytes]:
    """Train a model: the script."""
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    np.random.seed(0)
    subject = catalogue()[name]()
    net = subject.net.double().train()
    if nudged:
        nudge(net)
    optimizer = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9)
    losses = []
    for batch in DataLoader(subject.data, BATCH, shuffle=True):
        loss = subject.loss(net, *batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    # a copy: what a rank sends is pickled, and memory may be mapped by several ranks
    state = {key: value.detach().numpy().copy() for key, value in net.state_dict().items()}
    return losses, state, bytes(torch.get_rng_state().numpy())


def by_ranks(group, name: str, parameters: str) -> Trained:
    """Train a model on this rank."""
    report = Report()
    with session(group.world, Options(placement="sharded", parameters=parameters), group, report):
        before = group.gathered
        found = train(name)
        gathered = group.gathered - before
    if parameters == "sharded":
        assert report.of("parameters"), "they were not sharded: this compares nothing"
    gathers: dict[str, int] = {}
    for decision in report.of("gather"):
        gathers[decision.what] = gathers.get(decision.what, 0) + decision.count
    return Trained(*found, gathers, gathered)


def by_one(_, name: str, nudged: bool) -> Trained:
    """Train a model as one process does."""
    return Trained(*train(name, nudged), {})


def apart(want: np.ndarray, got: np.ndarray) -> float:
    """The largest difference, relative to the largest element."""
    if want.shape != got.shape or want.dtype != got.dtype:
        return float("inf")
    if not want.size or np.array_equal(want, got, equal_nan=want.dtype.kind == "f"):
        return 0.0
    difference = float(np.abs(want.astype(float) - got).max())
    found = difference / max(float(np.abs(want).max()), LEAST)
    return found if np.isfinite(found) else float("inf")


def compare(want: Trained, got: Trained) -> tuple[float, str]:
    """The largest difference, and where it is."""
    assert list(want.state) == list(got.state)
    pairs = {key: (value, got.state[key]) for key, value in want.state.items()}
    for k, losses in enumerate(zip(want.losses, got.losses, strict=True)):
        pairs[f"loss {k}"] = (np.array(losses[0]), np.array(losses[1]))
    differences = {key: apart(*pair) for key, pair in pairs.items()}
    at = max(differences, key=lambda key: differences[key])
    return differences[at], at


@contextmanager
def doubled() -> Iterator[None]:
    """Give float64 to a library that asks for float32."""
    kept = torch.float32, torch.Tensor.float
    torch.float32, torch.Tensor.float = torch.float64, torch.Tensor.double
    try:
        yield
    finally:
        torch.float32, torch.Tensor.float = kept


def examine(
    name: str,
    nproc: int = 2,
    rounding: bool = False,
    double: bool = False,
    parameters: str = "auto",
) -> Finding:
    """Train a model by one process and by ranks.

    Raises:
        AssertionError: A rank failed; its traceback is the message.
    """
    torch.set_default_dtype(torch.float64)
    catalogue()[name]()  # imports what the forked processes need
    with doubled() if double else nullcontext():
        one = run_ranks(by_one, 1, name, False)[0]
        ranks = run_ranks(by_ranks, nproc, name, parameters)
        nudged = run_ranks(by_one, 1, name, True)[0] if rounding else None
    difference, at = max(compare(one, found) for found in ranks)
    same = all(found.generator == one.generator for found in ranks)
    gathers = {what: count / STEPS for what, count in ranks[0].gathers.items()}
    effect = compare(one, nudged)[0] if nudged else None
    return Finding(name, difference, at, same, gathers, ranks[0].bytes / STEPS, effect)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", help="names, with commas between them")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--double", action="store_true", help="float64 instead of any float32")
    parser.add_argument("--rounding", action="store_true", help="and what rounding alone does")
    parser.add_argument("--parameters", default="auto")
    parser.add_argument("--list", action="store_true", help="names alone")
    args = parser.parse_args()
    names = args.models.split(",") if args.models else list(catalogue())
    if args.list:
        print("\n".join(names))
        return
    column, line = (" one unit in the last place |", "---|") if args.rounding else ("", "")
    print(f"| model | largest relative difference |{column} generator same | gathered in a step |")
    print(f"|---|---|{line}---|---|", flush=True)
    for name in names:
        began = time.perf_counter()
        try:
            row = examine(name, args.ranks, args.rounding, args.double, args.parameters).row()
        except Exception as error:  # the others are worth knowing
            print(error, file=sys.stderr, flush=True)
            row = f"| {name} | failed: {str(error).strip().splitlines()[-1]} | | |"
        print(row, flush=True)
        print(f"{name}: {time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
