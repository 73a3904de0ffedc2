"""Sharding of plain tensors when a module is called, for scripts that slice their own batches."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from autoddp.view.aliases import Base
from autoddp.view.redistribute import shard
from autoddp.view.shard_sizes import ShardSizes
from autoddp.view.sharded_tensor import ShardedTensor
from autoddp.view.state import View
from autoddp.view.work import SHARDED, WHOLE

PLAIN = {Tensor, nn.Parameter, nn.Buffer}


class ModuleEntry:
    """The outermost calls of modules on one rank.

    Which tensors are sharded, and along which dimension, is a guess: a wrong one costs an
    all-gather, and never changes a result.
    """

    def __init__(self, view: View) -> None:
        self.view = view
        self.depth = 0  # above 0 inside a module's call
        self.dims: weakref.WeakKeyDictionary[nn.Module, list[int]] = weakref.WeakKeyDictionary()

    def call(
        self, run: Callable[..., Any], module: nn.Module, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        """Call `run(module, *args, **kwargs)` after sharding plain tensors that hold the batch."""
        dims = self._batch_dims(module)
        new_args, new_kwargs = self._sharded(dims[0], args, kwargs)
        sharded = any(type(x) is ShardedTensor for x in (*new_args, *new_kwargs.values()))
        work = self.view.work.turn(SHARDED if sharded else WHOLE)
        self.depth += 1
        try:
            out = run(module, *new_args, **new_kwargs)
            if len(dims) > 1 and not _is_placed(out):
                dims.pop(0)
            return out
        finally:
            self.depth -= 1
            self.view.work.turn(work)

    def _batch_dims(self, module: nn.Module) -> list[int]:
        """Return the guesses for the batch dimension of inputs, of which the first is used.

        The guess is 1 if a submodule has `batch_first=False`. If the result is then replicated, the
        module may transpose its inputs itself, and the next call tries 0. The first call also
        records the order of the module's parameters.
        """
        guesses = self.dims.get(module)
        if guesses is None:
            self.view.order.note(nn.Module.parameters(module))
            self.view.recent_modules.append(weakref.ref(module))
            flags = [getattr(m, "batch_first", None) for m in nn.Module.modules(module)]
            guesses = self.dims[module] = [1, 0, 1] if False in flags else [0]
        return guesses

    def _sharded(self, dim: int, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return the arguments, with plain tensors of the batch's size sharded."""
        values = [*args, *kwargs.values()]
        lead = next((x for x in values if type(x) is ShardedTensor), None)
        plain = [x for x in values if type(x) in PLAIN and x.dim()]
        if not plain:
            return args, kwargs
        if lead is not None:
            sizes: ShardSizes = lead.sizes
        else:
            first = plain[0]
            total = first.shape[dim if first.dim() > dim else 0]
            if total < self.view.group.size or first.layout is not torch.strided:
                return args, kwargs
            sizes = self.view.even_sizes(total)
        if sizes.blocks > 1:
            return args, kwargs
        dims = (dim, 0) if lead is None else (lead.shard_dim, 0)
        shards = {id(x): self._shard(x, dims, sizes) for x in plain}
        return (
            tuple(shards.get(id(x), x) for x in args),
            {name: shards.get(id(x), x) for name, x in kwargs.items()},
        )

    def _shard(self, x: Tensor, dims: tuple[int, ...], sizes: ShardSizes) -> Tensor:
        """Shard a tensor that has the batch's size; return any other unchanged."""
        if x.layout is not torch.strided or x.is_quantized or x.is_nested:
            return x
        dim = next((d for d in dims if d < x.dim() and x.shape[d] == sizes.total), None)
        if dim is None:
            return x
        local = shard(x, sizes, dim)
        if not x.requires_grad:
            # memory of the script's tensor, with versions of its own
            outer = (n * s for n, s in zip(x.shape, x.stride(), strict=True))
            local = local.data if x.stride(dim) * x.shape[dim] >= max(outer) else local.clone()
        made = ShardedTensor(local, sizes, dim)
        made.base = Base(local, made.spec)  # writes into one reach the other
        made.base.keep(x)
        made.base.exported = True
        return made


def _is_placed(out: Any) -> bool:
    """Return whether a module's result, or one of a tuple, is sharded or a partial sum."""
    values = out if isinstance(out, (tuple, list)) else (out,)
    return any(isinstance(x, Tensor) and type(x) not in PLAIN for x in values)
