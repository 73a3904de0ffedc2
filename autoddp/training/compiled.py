"""`torch.compile` where ranks share a batch: Dynamo's graph, walked by the rules for local rows.

Dynamo traces a module with tensors that have the shapes of the whole batch, so what it specializes
on and guards is the same as in one process. Its graph is traced once more, by the rules, with this
rank's rows, and inductor compiles the result: collectives of BatchNorm and draws are part of it.
A graph that cannot be compiled is run function by function; a module without a single graph runs
eagerly.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import FunctionType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from autoddp.comm.context import Code
from autoddp.errors import AutoDDPError
from autoddp.report import users_line
from autoddp.torch_internals import (
    compiled_by_inductor,
    in_backward,
    inductor_settings,
    traced_whole,
    transform,
)
from autoddp.training.loading.generators import Generators
from autoddp.view import Partial, ShardedTensor, full
from autoddp.view.pending_sums import PendingSums
from autoddp.view.redistribute import lend
from autoddp.view.sharded_tensor import wrap
from autoddp.view.state import View

MOST = 8  # compiled graphs of one of Dynamo's, for inputs that are sharded differently
CUDA_GRAPHS = {"triton.cudagraphs": False}  # a collective over the host cannot be recorded
Graph = Callable[..., Any]


class Compiler:
    """The compiler of one rank, which owns the collectives that compiled graphs call."""

    def __init__(self, view: View) -> None:
        self.view = view
        self._library: Any = None

    def close(self) -> None:
        """Remove the operators from torch's registry."""
        self._library = None

    def operators(self) -> Any:
        """Return the namespace of collectives as operators; `after` orders them in a graph."""
        if self._library is None:
            group = self.view.group
            made = self._library = torch.library.Library("autoddp", "DEF")
            for name in ("all_reduce", "all_gather"):
                made.define(f"{name}(Tensor x, Tensor? after) -> Tensor")
            impl = partial(made.impl, dispatch_key="CompositeExplicitAutograd")
            impl("all_reduce", lambda x, after: group.all_reduce(_dense(x)))
            impl("all_gather", lambda x, after: group.all_gather(x))
            fake = partial(torch.library.register_fake, lib=made)
            fake("autoddp::all_reduce", lambda x, after: _dense(x))
            fake("autoddp::all_gather", lambda x, after: x.new_empty((group.size, *x.shape)))
        return torch.ops.autoddp

    def options(self, given: dict[str, Any]) -> tuple[dict[str, Any] | None, str]:
        """Return inductor's settings for arguments of `torch.compile`, or why it is left out."""
        if (backend := given.get("backend", "inductor")) != "inductor":
            return None, f"backend {backend!r}"
        settings = inductor_settings(given.get("mode")) | (given.get("options") or {})
        return settings | CUDA_GRAPHS, ""

    def compiled(self, function: Graph, name: str, given: dict[str, Any]) -> CompiledCall:
        """Return what calls `function`, compiled with these arguments of `torch.compile`."""
        settings, why = self.options(given)
        return CompiledCall(self, function, name, settings or {}, why)


class CompiledCall:
    """A function or module that was given to `torch.compile`.

    Args:
        compiler: The compiler of this rank.
        function: The function, or the call of the module.
        name: The name by which the user knows it.
        settings: Settings of inductor.
        why: The reason for which it is not compiled; empty if it is.
    """

    def __init__(
        self, compiler: Compiler, function: Graph, name: str, settings: dict[str, Any], why: str
    ) -> None:
        self.compiler, self.view, self.function = compiler, compiler.view, function
        self.name, self.settings, self.why = name, settings, why
        self.inputs: dict[int, ShardedTensor] = {}  # by the tensors that Dynamo is given instead
        self.began = False  # whether a graph of this call runs, or has run
        self._run: Graph | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it on sharded tensors; with none among the arguments it runs eagerly."""
        leaves, tree = tree_flatten((args, kwargs))
        sharded = any(type(x) is ShardedTensor for x in leaves)
        if not sharded or torch.compiler.is_compiling() or not self._in_step():
            return self.function(*args, **kwargs)
        if not self.why:
            before = self.inputs, self.began
            self.inputs, self.began = {}, False
            whole_args, whole_kwargs = tree_unflatten([self._whole(x) for x in leaves], tree)
            try:
                with self.view.context.internal():  # caches of compilers are on each rank
                    return self.run(*whole_args, **whole_kwargs)
            except Exception as error:
                if self.began or isinstance(error, AutoDDPError):
                    raise
                self.why = f"{error}".partition("\n")[0] or type(error).__name__
            finally:
                self.inputs, self.began = before
        self._say(self.why)
        return self.function(*args, **kwargs)

    def _in_step(self) -> bool:
        """Return whether ranks are in step here, and rules answer for functions."""
        context = self.view.context
        return context.is_script() and not context.depth[Code.FUNCTION] and transform() is None

    @property
    def run(self) -> Graph:
        """Return the function as Dynamo traces it, whole or not at all."""
        if self._run is None:
            within, function = torch.compiler.allow_in_graph(_within), self.function

            def call(*args: Any, **kwargs: Any) -> Any:
                args, kwargs = tree_map_only(Tensor, within, (args, kwargs))
                return function(*args, **kwargs)

            # Dynamo counts recompilations by the code object
            own = FunctionType(
                call.__code__.replace(), globals(), call.__name__, None, call.__closure__
            )
            self._run = traced_whole(own, self._backend)
        return self._run

    def _whole(self, x: Any) -> Any:
        """Return what Dynamo is given for a leaf: of a sharded tensor the shape, not the values."""
        if type(x) is not ShardedTensor:
            return full(x)
        made = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
        self.inputs[id(made.requires_grad_(x.requires_grad))] = x
        return made

    def _backend(self, graph: Any, _: Any) -> Graph:
        """Stand in for inductor: the sharded tensors are not known before the graph is called."""
        kept: dict[Any, Graph] = {}

        def run(*inputs: Any) -> Any:
            given = [self.inputs.get(id(x), x) for x in inputs]
            key = torch.is_grad_enabled(), *map(_placement, given)
            if key not in kept:
                kept[key] = self._compile(graph, given) if len(kept) < MOST else graph
            self.began = True
            return kept[key](*given)

        return run

    def _compile(self, graph: nn.Module, given: Sequence[Any]) -> Graph:
        """Compile a graph for inputs that are placed like these, on all ranks or on none."""
        made, error = LocalGraph(self.compiler, graph, given), ""
        before = Generators()  # Dynamo puts back what compilers draw, too
        try:
            made.compile([_local(x) for x in given], self.settings)
        except Exception as raised:
            error = f"{raised}".partition("\n")[0] or type(raised).__name__
        before.put_back()
        told = self.view.group.confer("torch.compile", json.dumps(error).encode())
        why = next(filter(None, json.loads(told)), "")
        if why:
            self._say(why)
        return graph if why else made.run

    def _say(self, why: str) -> None:
        said = f"{self.name} runs eagerly: torch.compile is left out, {why}"
        self.view.report.say_once("compile", users_line(), said)


class LocalGraph(nn.Module):
    """A graph of the whole batch, as a module that computes this rank's rows of it."""

    def __init__(self, compiler: Compiler, graph: nn.Module, given: Sequence[Any]) -> None:
        super().__init__()
        self.view, self.whole = compiler.view, graph.forward
        self.specs = [x.spec if type(x) is ShardedTensor else None for x in given]
        self.made: list[Callable[[Iterator[Any]], Any]] = []  # of results, from local ones
        self.group = TracedGroup(self.view.group, compiler.operators())
        self.compiled: Any = None

    def compile(self, example: list[Any], settings: dict[str, Any]) -> None:
        """Have inductor compile it."""
        with self._traced():
            self.compiled = compiled_by_inductor(
                self, example, settings, self.view.context.internal
            )

    def forward(self, *given: Any) -> tuple[Any, ...]:
        """Run the graph by the rules on local tensors; the compiler traces this."""
        args = [x if s is None else wrap(x, s) for x, s in zip(given, self.specs, strict=True)]
        self.group.last.clear()  # of the trace before
        out = self.whole(*args)
        self.made, found = [], []
        for x in out:
            if type(x) is ShardedTensor:
                self.made.append(partial(_sharded, x.spec))
                found.append(x._local)
            elif type(x) is Partial and x.unread:
                part = x._part
                self.made.append(partial(_partial, self.view, x.declared, part.count, x.node))
                found += [x.local, part.local]
            else:
                self.made.append(next)
                found.append(full(x))
        return tuple(found)

    def run(self, *given: Any) -> list[Any]:
        """Call the compiled graph with inputs of the whole graph, and return its results."""
        held = [(x, x.local._version) for x in given if type(x) is ShardedTensor]
        group = self.view.group
        out = iter(self.compiled(*(lend(_local(x), group) for x in given)))
        for x, version in held:
            if x._local._version != version:
                x.refresh()
        return [make(out) for make in self.made]

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
    """The collectives of a `Group`, as operators in a graph that keep their order on all ranks."""

    def __init__(self, group: Any, operators: Any) -> None:
        self.rank, self.size, self.operators = group.rank, group.size, operators
        self.last: dict[bool, Tensor] = {}  # the latest result, in the forward and the backward

    def all_reduce(self, x: Tensor, op: Any = dist.ReduceOp.SUM) -> Tensor:
        """Return the sum over all ranks; `x` stays as it is."""
        if op != dist.ReduceOp.SUM:
            raise NotImplementedError(f"a reduction by {op}")
        return self._ordered(self.operators.all_reduce, x)

    def all_gather(self, x: Tensor) -> Tensor:
        """Gather the ranks' tensors, stacked along a new first dimension."""
        return self._ordered(self.operators.all_gather, x)

    def _ordered(self, operator: Any, x: Tensor) -> Tensor:
        backward = in_backward()
        self.last[backward] = found = operator(x, self.last.get(backward))
        return found


def _within(x: Tensor) -> Tensor:
    """Return an input as a result of the graph: what leaves the graph is then the sharded one."""
    return x if type(x) is ShardedTensor else x.view_as(x)


def _placement(x: Any) -> Any:
    if type(x) is ShardedTensor:
        return x.spec, x._local.stride()
    return None if isinstance(x, Tensor) else x


def _local(x: Any) -> Any:
    return x.local if type(x) is ShardedTensor else x


def _dense(x: Tensor) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format)


def _sharded(spec: Any, out: Iterator[Any]) -> ShardedTensor:
    return wrap(next(out), spec)


def _partial(view: View, dtype: Any, count: int, node: str, out: Iterator[Any]) -> Partial:
    local, part = next(out), next(out)
    return Partial(local, view, dtype, view.pending.add(part, count), node)
