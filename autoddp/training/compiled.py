"""`torch.compile` where ranks share a batch: Dynamo's graph, walked by the rules for local rows.

Dynamo traces a module with tensors that have the shapes of the whole batch, so what it specializes
on and guards is the same as in one process. Its graph is traced once more, by the rules, with this
rank's rows, and inductor compiles the result, with BatchNorm's collectives and draws. A graph that
cannot be compiled is run function by function; a module without a single graph runs eagerly.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from autoddp.comm.context import Code
from autoddp.errors import AutoDDPError
from autoddp.report import users_line
from autoddp.torch_internals import inductor_settings, traced_whole, transform
from autoddp.training.loading.generators import Generators
from autoddp.training.local_graph import LocalGraph, Operators, local
from autoddp.view import ShardedTensor, full
from autoddp.view.state import View

MOST = 8  # compiled graphs of one of Dynamo's, for inputs that are sharded differently
CUDA_GRAPHS = {"triton.cudagraphs": False}  # a collective over the host cannot be recorded
Graph = Callable[..., Any]


class Compiler:
    """The compiler of one rank, with the collectives that compiled graphs call."""

    def __init__(self, view: View) -> None:
        self.view, self.operators = view, Operators(view.group)

    def compiled(self, function: Graph, name: str, given: dict[str, Any]) -> CompiledCall:
        """Return what calls `function`, compiled with these arguments of `torch.compile`."""
        backend = given.get("backend", "inductor")
        settings, why = CUDA_GRAPHS, "" if backend == "inductor" else f"backend {backend!r}"
        if not why:
            settings = inductor_settings(given.get("mode")) | (given.get("options") or {})
        return CompiledCall(self, function, name, settings | CUDA_GRAPHS, why)


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
        """Call it, compiled where it is given tensors; a batch below one row a rank is whole."""
        leaves, tree = tree_flatten((args, kwargs))
        if not any(isinstance(x, Tensor) for x in leaves) or not self._in_step():
            return self.function(*args, **kwargs)
        why = self.why
        if not why:
            before = self.inputs, self.began
            self.inputs, self.began = {}, False
            whole_args, whole_kwargs = tree_unflatten([self._whole(x) for x in leaves], tree)
            try:
                with self.view.context.internal():  # caches of compilers are on each rank
                    return self.run(*whole_args, **whole_kwargs)
            except Exception as error:
                if self.began or isinstance(error, AutoDDPError):
                    raise
                why = _words(error)
            finally:
                self.inputs, self.began = before
        out = self.function(*args, **kwargs)  # if it raises, that was no fault of the compiler
        self.why = why
        self._say(why)
        return out

    def _in_step(self) -> bool:
        """Return whether all ranks are here, and rules answer for functions."""
        context = self.view.context
        apart = context.is_plain() or context.depth[Code.FUNCTION] or not context.is_script()
        return not (apart or torch.compiler.is_compiling() or transform())

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
        made, why = LocalGraph(self.view, self.compiler.operators, graph, given), ""
        before = Generators()  # Dynamo puts back what compilers draw, too
        try:
            made.compile([local(x) for x in given], self.settings)
        except Exception as error:
            if isinstance(error, AutoDDPError):
                raise
            why = _words(error)
        before.put_back()
        told = self.view.group.confer("torch.compile", json.dumps(why).encode())
        why = next(filter(None, json.loads(told)), "")
        if why:
            self._say(why)
        return graph if why else made.run

    def _say(self, why: str) -> None:
        text = f"{self.name} runs eagerly: torch.compile is left out, {why}"
        self.view.report.say_once("compile", users_line(), text)


def _words(error: Exception) -> str:
    """Return an error's kind, and the first line of its text."""
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def _within(x: Tensor) -> Tensor:
    """Return an input as a result of the graph: what leaves the graph is then the sharded one."""
    return x if type(x) is ShardedTensor else x.view_as(x)


def _placement(x: Any) -> Any:
    if type(x) is ShardedTensor:
        return x.spec, x._local.stride()
    return None if isinstance(x, Tensor) else x
