"""A graph of the whole batch, traced by the rules and compiled for local rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from autoddp import inductor
from autoddp.torch_internals import in_backward
from autoddp.view import Partial, ShardedTensor, full
from autoddp.view.aliases import version
from autoddp.view.pending_sums import Part, PendingSums
from autoddp.view.redistribute import with_mean_gradient
from autoddp.view.sharded_tensor import wrap
from autoddp.view.state import View


class Operators:
    """The collectives of compiled graphs, as operators; `after` is an input that orders them."""

    def __init__(self, group: Any) -> None:
        self.group = group
        self._library: Any = None

    def close(self) -> None:
        """Remove the operators from torch's registry."""
        self._library = None

    def namespace(self) -> Any:
        """Return the namespace of the operators; register them at the first call."""
        if self._library is None:
            group = self.group
            library = self._library = torch.library.Library("autoddp", "DEF")
            for name in ("all_reduce", "all_gather"):
                library.define(f"{name}(Tensor x, Tensor? after) -> Tensor")
            impl = partial(library.impl, dispatch_key="CompositeExplicitAutograd")
            impl("all_reduce", lambda x, after: group.all_reduce(_dense(x)))
            impl("all_gather", lambda x, after: group.all_gather(x))
            fake = partial(torch.library.register_fake, lib=library)
            fake("autoddp::all_reduce", lambda x, after: _dense(x))
            fake("autoddp::all_gather", lambda x, after: x.new_empty((group.size, *x.shape)))
        return torch.ops.autoddp


class LocalGraph(nn.Module):
    """A graph of the whole batch, as a module that computes it on local rows."""

    def __init__(self, view: View, operators: Operators, graph: nn.Module, given: Any) -> None:
        super().__init__()
        self.view, self.whole = view, graph.forward
        self.specs = [x.spec if type(x) is ShardedTensor else None for x in given]
        self.rebuild: list[Callable[[Iterator[Any]], Any]] = []  # makes results from local ones
        self.group = TracedGroup(view.group, operators.namespace())
        self.compiled: Any = None

    def compile(self, example: list[Any], settings: dict[str, Any]) -> None:
        """Compile this module by inductor."""
        with self._traced():
            self.compiled = inductor.compiled(self, example, settings, self.view.context.internal)

    def forward(self, *given: Any) -> tuple[Any, ...]:
        """Run the graph by the rules on local tensors; the compiler traces this call."""
        args = [x if s is None else wrap(x, s) for x, s in zip(given, self.specs, strict=True)]
        self.group.last.clear()  # from an earlier trace
        out = self.whole(*args)
        self.rebuild, found = [], []
        for x in out:
            if type(x) is ShardedTensor:
                self.rebuild.append(partial(_sharded, x.spec))
                found.append(x._local)
            elif type(x) is Partial and x.unread and type(part := x._part) is Part:
                self.rebuild.append(partial(_partial, self.view, x.declared, part.count, x.node))
                found += [x.local, part.local]
            else:
                self.rebuild.append(next)
                found.append(full(x))
        return tuple(found)

    def run(self, *given: Any) -> list[Any]:
        """Call the compiled graph with the inputs of the whole graph, and return its results."""
        sharded = [(x, version(x.local)) for x in given if type(x) is ShardedTensor]
        group = self.view.group
        arguments = (
            x.local if type(x) is ShardedTensor else with_mean_gradient(x, group) for x in given
        )
        out = iter(self.compiled(*arguments))
        for x, before in sharded:
            if version(x._local) != before or before < 0:  # inference mode counts none
                x.wrote()
        return [make(out) for make in self.rebuild]

    @contextmanager
    def _traced(self) -> Iterator[None]:
        view: Any = self.view
        before = view.group, view.pending
        view.group, view.tracing = self.group, True
        view.pending = PendingSums(view.group)
        try:
            yield
        finally:
            view.tracing = False
            view.group, view.pending = before


class TracedGroup:
    """The collectives of a `Group`, as operators that keep their order in a compiled graph."""

    def __init__(self, group: Any, operators: Any) -> None:
        self.rank, self.size, self.operators = group.rank, group.size, operators
        self.confer = group.confer  # used while all ranks compile
        self.last: dict[bool, Tensor] = {}  # latest results of forward and backward

    def all_reduce(self, x: Tensor, op: Any = dist.ReduceOp.SUM) -> Tensor:
        """Return the sum over all ranks."""
        if op != dist.ReduceOp.SUM:
            # the graph is not compiled, and a line says why
            raise NotImplementedError(f"a reduction by {op}")
        return self._ordered(self.operators.all_reduce, x)

    def all_gather(self, x: Tensor) -> Tensor:
        """All-gather the ranks' tensors, stacked along a new first dimension."""
        return self._ordered(self.operators.all_gather, x)

    def _ordered(self, operator: Any, x: Tensor) -> Tensor:
        backward = in_backward()
        self.last[backward] = found = operator(x, self.last.get(backward))
        return found


def _dense(x: Tensor) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format)


def _sharded(spec: Any, out: Iterator[Any]) -> ShardedTensor:
    return wrap(next(out), spec)


def _partial(view: View, dtype: Any, count: int, node: str, out: Iterator[Any]) -> Partial:
    local = next(out)
    return Partial(local, view, dtype, view.pending.add(next(out), count), node)


def local(x: Any) -> Any:
    """Return the local rows of a sharded tensor; any other value unchanged."""
    return x.local if type(x) is ShardedTensor else x
