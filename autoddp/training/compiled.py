"""`torch.compile` on sharded batches: Dynamo's graph, traced by the rules on local rows.

Dynamo traces a module with tensors of the whole batch's shape, so that it specializes and guards as
in one process. The graph is traced again by the rules on local rows, and inductor compiles that,
with BatchNorm's collectives and random draws. A graph that does not compile runs function by
function; a module of several graphs runs eagerly.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Sequence
from functools import cache
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from autoddp import inductor
from autoddp.comm.context import Code
from autoddp.errors import AutoDDPError
from autoddp.report import users_line
from autoddp.torch_internals import transform
from autoddp.training.loading.generators import Generators
from autoddp.training.local_graph import LocalGraph, Operators, local
from autoddp.view import ShardedTensor, full
from autoddp.view.state import View

MAX_GRAPHS = 8  # compiled graphs of one of Dynamo's graphs, by the placements of inputs
CUDA_GRAPHS = {"triton.cudagraphs": False}  # host collectives cannot be captured
# Modules with functions that the collector or an audit hook calls, and one that calls the disabled.
SKIPPED = ("comm.context", "training.loading.live", "effects.witness", "training.uncompiled")
Graph = Callable[..., Any]


@cache
def _dynamo() -> ModuleType:
    """Return Dynamo, which leaves alone what Python calls by itself between two frames."""
    dynamo = importlib.import_module("torch._dynamo")  # takes as long as torch's own import
    for module in SKIPPED:
        dynamo.trace_rules.add(f"autoddp.{module}")
    return dynamo


class CompiledCall:
    """A function or module that was given to `torch.compile`.

    Args:
        view: The view of this rank.
        operators: The collectives in compiled graphs.
        function: The function, the module, or the call of the module.
        given: The arguments of `torch.compile`.
    """

    def __init__(
        self, view: View, operators: Operators, function: Graph, given: dict[str, Any]
    ) -> None:
        self.view, self.operators, self.function = view, operators, function
        owner = getattr(function, "__self__", function)
        kind, backend = type(owner).__name__, given.get("backend", "inductor")
        # the name that reports show
        self.name = kind if isinstance(owner, nn.Module) else getattr(function, "__name__", kind)
        # the reason for running eagerly; empty if it is compiled
        self.why = "" if backend == "inductor" else f"backend {backend!r}"
        self.settings = CUDA_GRAPHS
        if not self.why:
            options = given.get("options") or {}
            self.settings = inductor.settings_of(given.get("mode")) | options | CUDA_GRAPHS
        self.inputs: dict[int, ShardedTensor] = {}  # by the ids of Dynamo's inputs
        self.began = False  # whether a graph of this call has started
        self._run: Graph | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it compiled if it gets tensors, else eagerly; report a fallback once."""
        leaves, tree = tree_flatten((args, kwargs))
        if not any(isinstance(x, Tensor) for x in leaves) or not self._rules_apply():
            return self.function(*args, **kwargs)
        why = self.why or ("parameters are sharded" if self.view.sharded_parameters else "")
        if not why:
            before = self.inputs, self.began
            self.inputs, self.began = {}, False
            whole_args, whole_kwargs = tree_unflatten([self._placeholder(x) for x in leaves], tree)
            try:
                with self.view.context.internal():  # compilers write caches on each rank
                    return self.run(*whole_args, **whole_kwargs)
            except Exception as error:
                if self.began or isinstance(error, AutoDDPError):
                    raise
                why = _summary(error)
            finally:
                self.inputs, self.began = before
        out = self.function(*args, **kwargs)  # raises if the script is at fault
        self.why = why
        self._say(why)
        return out

    def _rules_apply(self) -> bool:
        """Return whether all ranks are here and rules apply to functions."""
        context = self.view.context
        elsewhere = context.is_plain() or context.depth[Code.FUNCTION] or not context.is_script()
        return not (elsewhere or torch.compiler.is_compiling() or transform())

    @property
    def run(self) -> Graph:
        """Return the function traced by Dynamo as one whole graph."""
        if self._run is None:
            identity, function = torch.compiler.allow_in_graph(_identity), self.function

            def call(*args: Any, **kwargs: Any) -> Any:
                args, kwargs = tree_map_only(Tensor, identity, (args, kwargs))
                return function(*args, **kwargs)

            # Dynamo counts recompilations by code object
            own = FunctionType(
                call.__code__.replace(), globals(), call.__name__, None, call.__closure__
            )
            # more than one graph is an error
            dynamo = _dynamo().optimize(self._backend, nopython=True, dynamic=False)
            self._run = dynamo(own)
        return self._run

    def _placeholder(self, x: Any) -> Any:
        """Return Dynamo's input for a leaf: an empty tensor of the whole shape if it is sharded."""
        if type(x) is not ShardedTensor:
            return full(x)
        made = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
        self.inputs[id(made.requires_grad_(x.requires_grad))] = x
        return made

    def _backend(self, graph: Any, _: Any) -> Graph:
        """Return the backend's result for a graph; it is compiled at its call, with the inputs."""
        kept: dict[Any, Graph] = {}

        def run(*inputs: Any) -> Any:
            given = [self.inputs.get(id(x), x) for x in inputs]
            key = torch.is_grad_enabled(), *map(_placement, given)
            if key not in kept:
                kept[key] = self._compile(graph, given) if len(kept) < MAX_GRAPHS else graph
            self.began = True
            return kept[key](*given)

        return run

    def _compile(self, graph: nn.Module, given: Sequence[Any]) -> Graph:
        """Compile a graph for inputs of these placements, on all ranks or on none."""
        made, why = LocalGraph(self.view, self.operators, graph, given), ""
        before = Generators()  # Dynamo also restores the generators that compilers use
        try:
            made.compile([local(x) for x in given], self.settings)
        except Exception as error:
            if isinstance(error, AutoDDPError):
                raise
            why = _summary(error)
        before.put_back()
        reasons = self.view.group.confer("torch.compile", json.dumps(why).encode())
        why = next(filter(None, json.loads(reasons)), "")
        if why:
            self._say(why)
        return graph if why else made.run

    def _say(self, why: str) -> None:
        text = f"{self.name} runs eagerly, without torch.compile: {why}"
        self.view.report.say_once("compile", users_line(), text)


def _summary(error: Exception) -> str:
    """Return the type of an error and the first line of its message."""
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def _identity(x: Tensor) -> Tensor:
    """Return `x`, as a result of the graph: outputs of the graph are then never Dynamo's inputs."""
    return x if type(x) is ShardedTensor else x.view_as(x)


def _placement(x: Any) -> Any:
    if type(x) is ShardedTensor:
        return x.spec, x._local.stride()
    return None if isinstance(x, Tensor) else x
