"""The decision of a rule to call a function on local shards, which is cached by its schema."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from autoddp.view.aliases import shares_memory
from autoddp.view.layouts import run_single
from autoddp.view.redistribute import shard, with_mean_gradient
from autoddp.view.schema import LISTS, REPLICATED
from autoddp.view.shard_sizes import ShardSizes, Spec
from autoddp.view.sharded_tensor import ShardedTensor, wrap

Placement = tuple[int, ShardSizes]  # shard dimension and shard sizes

MAYBE, DETACHED = "maybe", "detached"  # a result may be a view; it is one without a graph
grad_enabled = torch.is_grad_enabled
GATHER_ONCE = object()  # a rule's decision to gather in this call only


class LocalRows:
    """A rule's argument: this rank's rows along `dim` of the replicated tensor given there."""

    __slots__ = ("dim",)

    def __init__(self, dim: int) -> None:
        self.dim = dim

    def __call__(self, x: Tensor, sizes: ShardSizes) -> Any:
        return shard(x, sizes, self.dim)


class Const:
    """A rule's argument: a constant in place of the given one, such as a local size."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self, x: Any, sizes: ShardSizes) -> Any:
        return self.value


class LocalCall:
    """The decision to call a function on local shards.

    A rule gives the arguments of the local call: a sharded tensor for its shard, `LocalRows(dim)`
    for this rank's rows of a replicated tensor, any other tensor for itself, `Const(value)` for a
    constant. All other arguments are passed as they are given.

    Args:
        args: Positional arguments, as many as in the call.
        kwargs: Keyword arguments, as in the call.
        out: The placement of the result, or a list for several; None if it is replicated.
        aliases: Whether results are views of the first argument, a sharded tensor, or may be it;
            MAYBE if the result may also be a copy, DETACHED if it has no graph.
        in_place: Whether the function writes into its first argument and returns it.
        keeps_layout: Whether the result has the strides of arguments that all have the same.
        reorders: Whether the rows of the result may be inside of others in memory, though those of
            the arguments are outermost.
    """

    __slots__ = (
        *("aliases", "constants", "converted", "in_place", "keeps_layout", "lone", "names"),
        *("out", "reorders", "replicated", "shards", "single", "sizes", "specs"),
    )
    draws = False  # whether it draws random numbers

    def __init__(
        self,
        args: Any,
        kwargs: dict[str, Any],
        out: Placement | list[Placement | None] | None,
        aliases: Any = False,
        in_place: bool = False,
        keeps_layout: bool = False,
        reorders: bool = False,
    ) -> None:
        in_place = in_place or bool(kwargs.get("inplace"))
        self.out, self.aliases, self.in_place = out, aliases, in_place
        self.keeps_layout, self.reorders = keeps_layout, reorders
        self.shards = [i for i, x in enumerate(args) if type(x) is ShardedTensor]
        self.replicated = [i for i, x in enumerate(args) if type(x) in REPLICATED]
        self.constants = [(i, x.value) for i, x in enumerate(args) if type(x) is Const]
        known = {*self.shards, *self.replicated, *(i for i, _ in self.constants)}
        # (position, conversion) of lists and of replicated tensors that are sharded
        self.converted = [
            (i, s) for i, x in enumerate(args) if i not in known and (s := _conversion(x))
        ]
        self.names = [(name, s) for name, x in kwargs.items() if (s := _conversion(x))]
        # whether the first argument alone is not passed as it is given
        others = self.shards[1:] or self.replicated or self.constants or self.converted
        self.lone = self.shards[:1] == [0] and not others and not self.names
        leaves = [args[self.shards[0]]] if self.shards else tree_leaves((args, kwargs))
        self.sizes: ShardSizes = next(x for x in leaves if type(x) is ShardedTensor).sizes
        self.specs: Any = None
        # whether the layout of the whole does not follow from that of this rank's rows
        places = [p for p in (out if isinstance(out, list) else [out]) if p is not None]
        few = any(sizes.smallest < 2 for sizes in (self.sizes, *(sizes for _, sizes in places)))
        self.single = (
            bool(places and not in_place and (few or (aliases and self.sizes.blocks > 1)))
            and not self.sizes.view.tracing
        )

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Call `func` on local shards, and wrap its results."""
        if self.single:
            return run_single(self, func, args, kwargs)
        me: Any = args[self.shards[0]] if self.shards else None
        if self.lone:
            local = me._local if me.base is None else me.local
            if kwargs:
                out = func(local, *args[1:], **kwargs)
            else:
                out = func(local, *args[1:]) if len(args) > 1 else func(local)
        else:
            given, named = self.local_arguments(args, kwargs)
            out = func(*given, **named) if named else func(*given)
        if self.in_place or (me is not None and out is me._local):
            if not self.aliases or self.in_place:  # relu(x, inplace=True) writes, not contiguous()
                me.wrote()
            return None if out is None else me
        kind = type(out)
        if self.out is None or (kind is not Tensor and kind not in REPLICATED):
            return self.several(out, me, func, args, kwargs)
        spec = self.specs or self.specs_of(out)
        return self.view(out, spec, me, func, args, kwargs) if self.aliases else wrap(out, spec)

    def local_arguments(self, args: Any, kwargs: Any) -> tuple[list[Any], Any]:
        """Return the arguments of the local call."""
        given = list(args)
        for i in self.shards:
            x = given[i]
            given[i] = x._local if x.base is None else x.local
        for i, value in self.constants:
            given[i] = value
        if self.replicated or self.converted or self.names:
            kwargs = self._convert(given, kwargs)
        return given, kwargs

    def compute(self, func: Any, given: Any, kwargs: Any, drawn: Any) -> Any:
        """Return the local results; `drawn` are the strides of the wholes that are drawn for."""
        return func(*given, **kwargs)

    def rehearse(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, list[Any]]:
        """Return the results of the whole batch, and the strides of what was drawn for."""
        return func(*args, **kwargs), []

    def view(
        self, out: Tensor, spec: Spec, me: ShardedTensor, func: Any, args: Any, kwargs: Any
    ) -> ShardedTensor:
        """Wrap a result that is, or may be, a view of the first argument."""
        step = func, args[1:], kwargs, None, grad_enabled()
        if self.aliases is not True:
            if self.aliases is DETACHED:
                return me.detached_by(step, out, spec)
            if not out._is_view() and not shares_memory(out, me._local):
                return wrap(out, spec)
        return wrap(out, spec, me.base or me.based, (*me.path, step))

    def _convert(self, given: list[Any], kwargs: Any) -> Any:
        """Convert arguments but shards and constants, in `given`; return the keyword arguments."""
        sizes = self.sizes
        for i in self.replicated:
            x = given[i]
            if not x.is_leaf:  # without a gradient `x` is a leaf
                given[i] = with_mean_gradient(x, sizes.view.group)
        for i, step in self.converted:
            given[i] = step(given[i], sizes)
        if not self.names:
            return kwargs
        named = {**kwargs}
        for name, step in self.names:
            named[name] = step(named[name], sizes)
        return named

    def several(self, out: Any, me: Any, func: Any, args: Any, kwargs: Any) -> Any:
        """Wrap several results; one without a placement is returned as it is."""
        if self.out is None or not isinstance(out, (tuple, list)):
            return out
        views = bool(self.aliases)
        base, path, rest = (me.based, me.path, args[1:]) if views else (None, (), ())
        grad, made = grad_enabled(), []
        for item, (o, s) in enumerate(zip(out, self.specs or self.specs_of(out), strict=True)):
            if s is None or not isinstance(o, Tensor):
                made.append(o)
            elif views:
                made.append(wrap(o, s, base, (*path, (func, rest, kwargs, item, grad))))
            else:
                made.append(wrap(o, s))
        return type(out)(made)

    def specs_of(self, out: Any) -> Any:
        """Compute the specs of results, once for all calls of this schema."""
        if isinstance(out, Tensor):
            assert isinstance(self.out, tuple)
            self.specs = spec_of(out, self.out)
        else:
            places = self.out if isinstance(self.out, list) else [self.out] * len(out)
            self.specs = [
                spec_of(o, p) if p is not None and isinstance(o, Tensor) else None
                for o, p in zip(out, places, strict=True)
            ]
        return self.specs


def spec_of(out: Tensor, placement: Placement) -> Spec:
    """Return the spec of a local result with this placement."""
    return placement[1].spec(tuple(out.shape), placement[0])


def _local(x: Any, sizes: ShardSizes) -> Any:
    """Return the shard of a sharded tensor, and a replicated tensor itself."""
    if type(x) is ShardedTensor:
        return x.local
    return x if x.is_leaf else with_mean_gradient(x, sizes.view.group)


def _conversion(x: Any) -> Any:
    """Return the function that converts a given argument for a local call; None for none."""
    kind = type(x)
    if kind is LocalRows or kind is Const:
        return x
    if kind is ShardedTensor or kind in REPLICATED:
        return _local
    steps = [_conversion(item) for item in x] if kind in LISTS else []
    if not any(steps):
        return None

    def items(given: Any, sizes: ShardSizes) -> Any:
        made = [x if s is None else s(x, sizes) for x, s in zip(given, steps, strict=True)]
        return made if kind is list else tuple(made)

    return items
