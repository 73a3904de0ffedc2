"""What a step of a training costs with sharded batches, and with whole ones, by what it counts.

The model is that of a roofline (Williams et al., 2009) with a fixed cost for each function: Python
and torch need some microseconds for one, whatever its size, which rules and collectives add to, and
operations and bytes need time by their number, which ranks share.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from torch.nn import Parameter
from torch.nn import functional as F  # the field's name for it

from autoddp.view.table import GRAPH

MATMUL = {"matmul", "bmm", "mm", "__matmul__", "__rmatmul__", "baddbmm", "addmm", "einsum"}
ATTENTION = "scaled_dot_product_attention"
CONVOLUTIONS = {getattr(F, f"conv{kind}{n}d") for kind in ("", "_transpose") for n in (1, 2, 3)}


@dataclass(frozen=True)
class Costs:
    """Seconds of what a rank does, of the order of those of `python -m benchmarks.never_slower`.

    Attributes:
        operation: A floating point operation.
        convolution: One of a convolution.
        byte: A byte of a result.
        function: torch's own part of a function of the script, forward, backward and update.
        forward: The same of a function that no gradient goes through.
        loop: torch's own part of a step, as the loader and the optimizer.
        rule: What a rule adds to a function.
        entry: What a step adds, as the entries of modules.
        collective: A collective of few bytes.
        moved: A byte that is gathered or averaged.
        updated: A byte of a gradient: each rank reads the weights, and updates them.
        overlaps: Whether the device computes while Python goes on.
    """

    operation: float
    convolution: float
    byte: float
    function: float
    forward: float
    loop: float
    rule: float
    entry: float
    collective: float
    moved: float
    updated: float
    overlaps: bool


ON_CPU = Costs(
    operation=1e-11, convolution=3e-11, byte=1e-10, function=8e-5, forward=2e-5, loop=5e-4,
    rule=3e-5, entry=2.5e-4, collective=2.5e-4, moved=5e-10, updated=1.4e-9, overlaps=False,
)  # fmt: skip
ON_ACCELERATOR = Costs(
    operation=5e-14, convolution=5e-14, byte=2e-12, function=8e-5, forward=2e-5, loop=5e-4,
    rule=3e-5, entry=2.5e-4, collective=1e-4, moved=1e-11, updated=5e-12, overlaps=True,
)  # fmt: skip


def on_cpus(ranks: int, cores: int) -> Costs:
    """Return the costs on a machine's CPUs.

    Where ranks take turns on its cores, a collective waits until each has had several turns: on two
    cores it takes four times as long with four ranks as with two.
    """
    crowd = max(1.0, ranks / cores)
    return replace(ON_CPU, collective=crowd**2 * ON_CPU.collective)


@dataclass
class Step:
    """What a step is made of; numbers are those of the whole batch.

    Attributes:
        functions: Functions of sharded tensors.
        forwards: Those of them whose results need no gradient.
        gathering: Those of them that gather.
        operations: Floating point operations that ranks share.
        convolved: Those of them in convolutions.
        size: Bytes of results that ranks share.
        collectives: How often all ranks communicate.
        moved: Bytes that are gathered.
        fetched: Tensors of batches that whole batches would gather, as ranks fetch rows of them.
        fetched_size: Their bytes.
    """

    functions: int = 0
    forwards: int = 0
    gathering: int = 0
    operations: float = 0.0
    convolved: float = 0.0
    size: float = 0.0
    collectives: int = 0
    moved: int = 0
    fetched: int = 0
    fetched_size: int = 0

    def add(self, func: Any, args: Any, out: Any, gathers: bool) -> None:
        """Count a function; all ranks compute all of one that `gathers`."""
        results = [*_tensors((out,))]
        self.functions += bool(results)
        self.forwards += bool(results) and not any(_local(x).requires_grad for x in results)
        self.gathering += gathers
        if func in GRAPH or gathers:
            return
        for x in results:
            passes = 3 if _local(x).requires_grad else 1  # a backward is two of them
            self.size += passes * x.numel() * x.dtype.itemsize
            operations = passes * 2 * x.numel() * _summed(func, args)
            self.operations += operations
            self.convolved += operations if func in CONVOLUTIONS else 0

    def fetch(self, whole: Tensor) -> None:
        """Count a tensor of a batch of which each rank has fetched its rows."""
        self.fetched += 1
        self.fetched_size += whole.numel() * whole.dtype.itemsize

    def seconds(
        self, costs: Costs, ranks: int, gradients: int, averaged: bool
    ) -> tuple[float, float]:
        """Predict how long a step takes with sharded batches, and with whole ones.

        Args:
            costs: Those of the device.
            ranks: The number of ranks.
            gradients: Bytes of gradients.
            averaged: Whether gradients of whole batches are averaged, too.
        """
        graph = self.functions - self.forwards
        own = graph * costs.function + self.forwards * costs.forward + costs.loop
        work = (self.operations - self.convolved) * costs.operation + self.size * costs.byte
        work += self.convolved * costs.convolution
        more = self.functions * costs.rule + self.collectives * costs.collective + costs.entry
        moved = (self.moved + gradients) * costs.moved
        fetched = self.fetched * costs.collective + self.fetched_size * costs.moved
        fetched += gradients * costs.moved if averaged else 0
        moved, fetched = moved + gradients * costs.updated, fetched + gradients * costs.updated
        if costs.overlaps:
            return max(own + more, work / ranks + moved), max(own, work + fetched)
        return own + more + moved + work / ranks, own + work + fetched


def _summed(func: Any, args: Any) -> float:
    """Return how many products an element of a function's result is a sum of, roughly."""
    name = getattr(func, "__name__", "")
    if name in MATMUL or name == ATTENTION:
        first = next(_tensors(args), None)
        products = 0 if first is None or not first.dim() else first.shape[-1]
        return 2 * products if name == ATTENTION else products
    if name == "embedding":
        return 0
    weights = [x for x in _tensors(args) if type(x) is Parameter and x.dim() > 1]
    return sum(x.numel() for x in weights) / weights[0].shape[0] if weights else 0


def _local(x: Any) -> Any:
    """Return this rank's part of a result, which tells whether it needs a gradient."""
    return getattr(x, "local", x)


def _tensors(given: Any) -> Iterator[Tensor]:
    for x in given:
        if isinstance(x, Tensor):
            yield x
        elif isinstance(x, (tuple, list)):
            yield from _tensors(x)
