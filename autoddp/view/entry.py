"""Sharding of plain tensors when a module is called, for scripts that slice their own batches."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from autoddp.comm.accelerator import capturing
from autoddp.own_operations import unseen
from autoddp.report import users_line
from autoddp.torch_internals import traced, transform
from autoddp.view.aliases import Base
from autoddp.view.containers import Copies, is_container, leaves_of
from autoddp.view.order import parameters_of
from autoddp.view.redistribute import shard
from autoddp.view.shard_sizes import ShardSizes
from autoddp.view.sharded_tensor import ShardedTensor
from autoddp.view.state import View
from autoddp.view.work import SHARDED, WHOLE

ROWS = "each rank computes its rows of the batch"
PLAIN = {Tensor, nn.Parameter, nn.Buffer}


@dataclass
class Batch:
    """The arguments of an outermost call.

    Attributes:
        values: The arguments, in the order of the call.
        sharded: Whether one of them is sharded, or holds what is.
        rows: The rows of arrays that tensors are still to be made of; 0 for none.
        copies: The script's containers, if some were looked into.
        flat: Whether tensors of one dimension alone were sharded, which may be a single sample.
    """

    values: list[Any]
    sharded: bool
    rows: int = 0
    copies: Copies | None = None
    flat: bool = False


class ModuleEntry:
    """The outermost calls of modules on one rank.

    Which tensors are sharded, and along which dimension, is a guess: a wrong one costs an
    all-gather, and never changes a result.

    Attributes:
        depth: How many modules' calls this is inside of; only the outermost one counts.
        rows: The rows of arrays that came into the outermost call; 0 without any.
    """

    def __init__(self, view: View) -> None:
        self.view = view
        self.depth = self.rows = 0
        self.where: tuple[nn.Module, str] | None = None  # a call to report once it is sharded
        # guesses by module; of weak references, as asking a dictionary made of them costs a call
        self.dims: dict[weakref.ref[nn.Module], list[int]] = {}
        # modules that could not use the rows of what their containers hold, or of a single sample
        self.flat: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self.reported: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._inside: dict[int, tuple[Tensor, Tensor]] = {}  # tensors made of arrays, sharded

    def call(
        self,
        run: Callable[..., Any],
        module: nn.Module,
        args: Any,
        kwargs: Any,
        shards: bool = False,
    ) -> Any:
        """Call `run(module, *args, **kwargs)`, in an outermost call after sharding the batch.

        With `shards`, also where ranks share no work.
        """
        context = self.view.context
        if (self.depth and not self.rows) or context.is_plain() or not context.is_script():
            return run(module, *args, **kwargs)
        known = weakref.ref(module) in self.dims or next(parameters_of(module), None)
        if _traced() or known is None:
            return run(module, *args, **kwargs)
        if self.view.at_call is not None and not self.depth:
            self.view.at_call()
        if self.view.replicates and not shards:
            return self._whole(run, module, args, kwargs)
        if self.view.group.kind and capturing():
            return run(module, *args, **kwargs)
        return self._sharding(run, module, args, kwargs)

    def _sharding(
        self, run: Callable[..., Any], module: nn.Module, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        """Call a module after sharding plain tensors that hold the batch."""
        if self.depth:
            return run(module, *map(self._row_wise, args), **kwargs)
        dims = self._batch_dims(module)
        batch = self._sharded(module, dims[0], [*args, *kwargs.values()])
        given, work = batch.values, self.view.work.turn(SHARDED if batch.sharded else WHOLE)
        self.depth, self.rows = 1, batch.rows
        if batch.rows and module not in self.reported:
            self.where = module, users_line()
        try:
            named = dict(zip(kwargs, given[len(args) :], strict=True))
            out = run(module, *given[: len(args)], **named)
        finally:
            self.depth, self.rows, self.where = 0, 0, None
            self._inside.clear()
            self.view.work.turn(work)
            if batch.copies is not None:
                batch.copies.write_back()
        self._learn(module, dims, batch, out)
        return out if batch.copies is None else batch.copies.original(out)

    def _whole(
        self, run: Callable[..., Any], module: nn.Module, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        """Call a module in which ranks share no work: nothing is sharded."""
        self._batch_dims(module)
        depth, self.depth = self.depth, 1
        try:
            return run(module, *args, **kwargs)
        finally:
            self.depth = depth

    def _learn(self, module: nn.Module, dims: list[int], batch: Batch, out: Any) -> None:
        """Take the next guess if a result of the module is on no rank's rows."""
        unsure = len(dims) > 1 or batch.copies is not None or batch.flat
        if not unsure or self.view.replicates:
            return
        found = [x for x in leaves_of((out,)) if isinstance(x, Tensor)]
        if any(type(x) not in PLAIN for x in found):
            return
        if len(dims) > 1:
            dims.pop(0)
        elif found:
            self.flat.add(module)

    def _batch_dims(self, module: nn.Module) -> list[int]:
        """Return the guesses for the batch dimension of inputs, of which the first is used.

        The guess is 1 if a submodule has `batch_first=False`. If the result is then replicated, the
        module may transpose its inputs itself, and the next call tries 0. The first call also
        records the order of the module's parameters.
        """
        guesses = self.dims.get(weakref.ref(module))
        if guesses is None:
            self.view.order.note(parameters_of(module))
            self.view.recent_modules.append(weakref.ref(module))
            flags = [getattr(m, "batch_first", None) for m in nn.Module.modules(module)]
            guesses = [1, 0, 1] if False in flags else [0]
            self.dims[weakref.ref(module, self.dims.pop)] = guesses
        return guesses

    @unseen
    def _sharded(self, module: nn.Module, dim: int, values: list[Any]) -> Batch:
        """Return the arguments, with plain tensors of the batch's size sharded."""
        inside = any(map(is_container, values)) and module not in self.flat
        leaves = [*leaves_of(values)] if inside else values
        lead = next((x for x in leaves if type(x) is ShardedTensor), None)
        if lead is None and self.view.replicates:
            return Batch(values, sharded=False)
        plain = [x for x in leaves if type(x) in PLAIN and x.dim()]
        arrays = [len(x) for x in leaves if isinstance(x, ndarray()) and x.ndim]
        found = Batch(values, sharded=any(type(x) is ShardedTensor for x in values))
        if not plain:
            rows = arrays[0] if arrays and lead is None else 0
            found.rows = rows if rows >= self.view.group.size else 0
            return found
        flat = lead is None and all(x.dim() == 1 for x in plain)
        if flat and module in self.flat:
            return found
        sizes: ShardSizes | None = lead.sizes if lead is not None else self._sizes(plain[0], dim)
        if sizes is None or sizes.blocks > 1:
            return found
        found.rows = sizes.total if sizes.total in arrays else 0
        dims = (dim, 0) if lead is None else (lead.shard_dim, 0)
        shards = {id(x): self._shard(x, dims, sizes) for x in plain}
        copies = Copies(lambda x: shards.get(id(x), x))
        found.values = [copies.of(x) for x in values] if inside else [*map(copies.replace, values)]
        found.copies, found.flat = copies if inside else None, flat
        found.sharded = lead is not None or any(type(x) is ShardedTensor for x in shards.values())
        if lead is None and found.sharded and module not in self.reported:
            self._report(module, users_line())
        return found

    def _sizes(self, first: Tensor, dim: int) -> ShardSizes | None:
        """Return the sizes of a batch by its first tensor; None if some rank gets no row."""
        total = first.shape[dim if first.dim() > dim else 0]
        if total < self.view.group.size or first.layout is not torch.strided or first.is_meta:
            return None
        return self.view.even_sizes(total)

    @unseen
    def _row_wise(self, x: Any) -> Any:
        """Return what an inner module gets: a tensor made of the batch's arrays is sharded."""
        if type(x) is not Tensor or not x.dim() or len(x) != self.rows:
            return x
        known = self._inside.get(id(x))
        if known is None or known[0] is not x:
            known = x, self._shard(x, (0,), self.view.even_sizes(self.rows))
            if self.where is not None:
                self._report(*self.where)
                self.where = None
            if not x.requires_grad:
                self._inside[id(x)] = known
        return known[1]

    def _report(self, module: nn.Module, where: str) -> None:
        self.reported.add(module)
        self.view.report.add("modules", f"{type(module).__name__} at {where}", ROWS)

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
            local = local.data if x.stride(dim) * x.shape[dim] >= max(outer) else sizes.copy(x, dim)
        made = ShardedTensor(local, sizes, dim)
        made.base = Base(local, made.spec)  # writes into one reach the other
        made.base.keep(x)
        made.base.exported = True
        return made


def ndarray() -> Any:
    """Return numpy's class of arrays, or no class if the script has not imported it."""
    numpy = sys.modules.get("numpy")
    return () if numpy is None else numpy.ndarray


def _traced() -> bool:
    return bool(traced()) or transform() is not None
