"""Batches that a script hands to a thread of its own, as callbacks of Keras and writers do.

Ranks' threads are in no common order in which they could gather, so what a thread gets is gathered
where the script hands it over. One gather serves all reads until the next write.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import suppress
from types import FunctionType, MethodType
from typing import Any

from torch.utils._pytree import tree_leaves

from autoddp.patching import Call, Feature, patch
from autoddp.view.containers import MANY
from autoddp.view.sharded_tensor import Partial, ShardedTensor
from autoddp.view.state import View

POOL = ("apply_async", "_map_async", "imap", "imap_unordered")


class HandedOver(Feature):
    """The part of `Modules` for threads."""

    view: View

    @patch(
        "concurrent.futures.thread:ThreadPoolExecutor.submit",
        "queue:Queue.put",
        *(f"multiprocessing.pool:Pool.{name}" for name in POOL),
        "threading:Thread.start",
        why="a thread gets whole batches, as ranks' threads are in no common order",
    )
    def hand_over(self, call: Call) -> Any:
        """Gather the sharded tensors among what a thread gets, and what its function has kept."""
        context = self.view.context
        if context.is_script() and not any(context.depth):
            thread = vars(call.instance) if call.target.endswith("start") else {}
            functions = thread.get("_target"), *call.args, *call.kwargs.values()
            given = thread.get("_args"), thread.get("_kwargs"), call.args, call.kwargs
            kept = (x for function in functions for x in _kept(function))
            for x in tree_leaves([*given, *kept], is_leaf=_is_long):
                if type(x) is ShardedTensor:
                    x.full(shared=True)
                elif type(x) is Partial:
                    x.full()
        return call.plain()


def _is_long(x: Any) -> bool:
    """Return whether a container is not looked into: a list of numbers may be long."""
    return isinstance(x, (list, tuple, dict)) and len(x) > MANY


def _kept(function: Any) -> Iterator[Any]:
    """Yield what a function brings along: arguments and defaults, its closure, names it reads."""
    if isinstance(function, functools.partial):
        yield from (function.args, function.keywords)
        yield from _kept(function.func)
    if isinstance(function, MethodType):
        function = function.__func__
    if isinstance(function, FunctionType):
        yield function.__defaults__
        yield [function.__globals__.get(name) for name in function.__code__.co_names]
        for cell in function.__closure__ or ():
            with suppress(ValueError):  # an empty one
                yield cell.cell_contents
