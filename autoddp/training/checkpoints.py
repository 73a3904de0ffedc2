"""Activation checkpointing: what a backward computes again runs by the rules of the forward."""

from __future__ import annotations

import functools
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import set_checkpoint_early_stop

from autoddp import torch_internals
from autoddp.patching import Call, Feature, patch
from autoddp.view import ShardedTensor
from autoddp.view.entry import ModuleEntry
from autoddp.view.state import View


class Checkpoints(Feature):
    """The part of `Modules` for checkpoints of activations."""

    view: View
    entry: ModuleEntry

    @patch(
        "torch.autograd.graph:saved_tensors_hooks.__init__",
        why="what a backward computes again runs by the same rules as the first time",
    )
    def compute_again(self, call: Call) -> Any:
        """Have torch's own hooks (checkpointing) run as if they were called here, in the forward.

        A backward calls them from any node, also from that of an autograd function, in which
        batches are whole; a module's call there would not shard its inputs.
        """
        unpack: Any = call.named.get("unpack_hook")
        if not str(getattr(unpack, "__module__", "")).startswith("torch."):
            return call.plain()
        view, entry = self.view, self.entry
        context, inside, code = view.context, (entry.depth, entry.rows), [*view.context.depth]
        replicates = view.replicates

        @functools.wraps(unpack)
        def again(x: Any) -> Any:
            before = context.depth, (entry.depth, entry.rows), view.again, view.replicates
            context.depth, view.again = [*code], torch_internals.current_node()
            view.replicates = replicates
            entry.depth, entry.rows = inside
            try:
                return unpack(x)
            finally:
                context.depth, (entry.depth, entry.rows), view.again, view.replicates = before

        return call.changed(unpack_hook=again)

    @patch(
        "torch.utils.checkpoint:checkpoint",
        why="the reentrant form is an autograd function, which sees whole tensors; the other form "
        "gives the same gradients",
    )
    def checkpoint(self, call: Call) -> Any:
        """Compute a checkpoint of sharded tensors in the form that is not reentrant."""
        if torch.compiler.is_compiling():
            return call.plain()
        if not call.args:
            return _checkpointing(call.plain(), call.kwargs)
        function, *rest = call.args
        reentrant = call.kwargs.get("use_reentrant")
        leaves = tree_leaves((rest, call.kwargs))
        held = any(type(x) is ShardedTensor for x in leaves)
        if not held or not torch.is_grad_enabled():
            return call.wrapped(function, *rest, **call.kwargs)
        needs = any(isinstance(x, Tensor) and x.requires_grad for x in leaves)
        others = set(call.kwargs) - {"use_reentrant", "preserve_rng_state"}
        if reentrant is not False and (others or not needs):
            # reentrant without a graph to hang on: torch warns
            return call.wrapped(function, *rest, **call.kwargs)
        # the reentrant form computes all of the function again, and what it counts a second time
        whole = reentrant is not False
        with set_checkpoint_early_stop(False) if whole else nullcontext():
            given = {**call.kwargs, "use_reentrant": False}
            return _checkpointed(call.wrapped, function, rest, given)


def _checkpointed(plain: Any, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Call `checkpoint` without the sharded arguments, which it would save as whole tensors.

    An empty tensor shows it their device.
    """

    def again(_: Tensor, *others: Any, **named: Any) -> Any:
        pairs = zip(args, others, strict=True)
        return function(*(x if type(x) is ShardedTensor else y for x, y in pairs), **named)

    first = next(x for x in tree_leaves((args, kwargs)) if type(x) is ShardedTensor)
    where = torch.empty(0, device=first.device)
    return plain(again, where, *(None if type(x) is ShardedTensor else x for x in args), **kwargs)


def _checkpointing(plain: Any, given: dict[str, Any]) -> Any:
    """Return the decorator that `checkpoint(use_reentrant=False)` is, of calls that are patched."""

    def decorate(function: Any) -> Any:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            return torch.utils.checkpoint.checkpoint(function, *args, **given, **kwargs)

        return run

    return decorate if callable(plain) else plain
