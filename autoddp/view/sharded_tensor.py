"""`ShardedTensor`, a batch that is sharded over ranks, and `Partial`, a sum not reduced yet."""

from __future__ import annotations

import weakref
from contextlib import nullcontext
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from autoddp.torch_internals import outside_transforms, transform
from autoddp.view.aliases import RAW, AliasGroup, exposes, overwrite, same_mode, version
from autoddp.view.pending_sums import Part
from autoddp.view.redistribute import Gather, SumOverRanks, node_name, shard, with_node_name
from autoddp.view.shard_sizes import ShardSizes, Spec
from autoddp.view.state import View

UNKNOWN = (-1,)
PLAIN = {int, float, bool, str, type(None), torch.dtype, torch.device}
STRIDED, make_wrapper = torch.strided, Tensor._make_wrapper_subclass


class TensorType(type(Tensor)):  # type: ignore[misc]  # torch's stub does not know it for a class
    """Metaclass of tensor types that equal `torch.Tensor`; `is` cannot be overridden."""

    def __eq__(cls, other: object) -> bool:
        return other is Tensor or cls is other

    __hash__ = type.__hash__  # registries of types (copyreg, pytree) still distinguish them


class DistributedTensor(Tensor, metaclass=TensorType):
    """Base of the tensors that are spread over ranks; `dispatch.py` defines their functions."""

    @property  # type: ignore[misc]
    def __class__(self) -> type[Tensor]:  # type: ignore[override]
        return Tensor

    def __init__(self, *_: Any, **__: Any) -> None:
        """Do nothing: `__new__` has set all attributes."""


class ShardedTensor(DistributedTensor, metaclass=TensorType):
    """A tensor with the shape of the whole batch, of which this rank holds a shard.

    A function without a rule gathers the batch, and runs on the whole of it on every rank.

    Args:
        local: This rank's shard.
        sizes: The number of rows on each rank.
        dim: The shard dimension.
        aliases: The tensors that share memory with this one.
    """

    spec: Spec
    _local: Tensor
    _whole: Tensor | None = None
    _versions = (0, 0)
    aliases_if_any: AliasGroup | None = None

    @staticmethod
    def __new__(
        cls: type[ShardedTensor],
        local: Tensor,
        sizes: ShardSizes,
        dim: int = 0,
        aliases: AliasGroup | None = None,
    ) -> ShardedTensor:
        return wrap(local, sizes.spec(tuple(local.shape), dim), aliases)

    @property
    def shape(self) -> torch.Size:  # type: ignore[override]
        return self.spec.shape

    @property
    def ndim(self) -> int:  # type: ignore[override]
        return len(self.spec.shape)

    @property
    def dtype(self) -> torch.dtype:  # type: ignore[override]
        return self._local.dtype

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self._local.device

    def dim(self) -> int:
        return len(self.spec.shape)

    def size(self, dim: Any = None) -> Any:
        return self.spec.shape if dim is None else self.spec.shape[dim]

    def numel(self) -> int:
        return self.spec.shape.numel()

    def is_floating_point(self) -> bool:
        return self._local.is_floating_point()

    @property
    def sizes(self) -> ShardSizes:
        return self.spec.sizes

    @property
    def owner(self) -> View:
        return self.spec.view

    @property
    def shard_dim(self) -> int:
        return self.spec.dim

    @property
    def placement(self) -> tuple[int, ShardSizes]:
        """Return the shard dimension and the shard sizes."""
        return self.spec.dim, self.spec.sizes

    @property
    def aliases(self) -> AliasGroup:
        """Return the tensors that share memory with this one."""
        found = self.aliases_if_any
        if found is None:
            found = self.aliases_if_any = AliasGroup()
        return found

    @property
    def local(self) -> Tensor:
        """Return this rank's shard, including what was written into gathered copies."""
        shared = self.aliases_if_any
        if shared is not None and (shared.gathered or shared.exported):
            shared.sync_rows()
        return self._local

    def full(self) -> Tensor:
        """Return the whole batch; one all-gather serves all reads until the next write."""
        local = self.local
        whole = self._whole
        needs = local.requires_grad and torch.is_grad_enabled()
        shared = self.aliases
        if (
            whole is not None
            and self._versions[0] == version(local)
            and not shared.separate_versions
            and (whole.requires_grad or not needs)
        ):
            return whole
        exported = shared.exported_whole(local) if shared.exported and not needs else None
        with outside_transforms() if transform() else nullcontext(), same_mode(local):
            gather = with_node_name(Gather, node_name(local)) if needs else Gather
            whole = (
                gather.apply(local, self.sizes, self.shard_dim) if exported is None else exported
            )
        if self._whole is None and not whole.is_inference():
            shared.gathered.append(weakref.ref(self))
        self._whole, self._versions = whole, (version(local), version(whole))
        return whole

    def sync_rows(self, untracked: bool = False) -> None:
        """Copy writes into the gathered whole to the shard; `untracked` ones change no version."""
        whole = self._whole
        if whole is None:
            return
        untracked |= whole.is_inference()
        if not untracked and whole._version == self._versions[1]:
            return
        self._versions = (self._versions[0], version(whole))
        source = whole.detach() if untracked else whole
        local = shard(source, self.sizes, self.shard_dim)
        if overwrite(self._local, local, untracked):
            self.aliases.forget_gathered(self)
        self._versions = (version(self._local), version(whole))

    def note_refresh(self) -> None:
        """Record the versions after a refresh, so that it does not count as a write."""
        whole, exported = self._whole, self.aliases.exported_whole(self._local)
        if whole is not None and exported is not None and whole.data_ptr() == exported.data_ptr():
            self._versions = (version(self._local), version(whole))

    def refresh(self) -> None:
        """Update gathered memory that the script holds, after all ranks wrote into the batch."""
        shared = self.aliases_if_any
        if shared is not None and shared.exported:
            shared.refresh()

    def sync_after(self, out: Any, func: Any, untracked: bool = False) -> None:
        """Copy what `func` wrote into the whole to the shard; note if `out` exposes the memory."""
        self.sync_rows(untracked)
        self.export(out, func)
        if self._whole is not None and self._whole.is_inference():
            self._whole = None  # inference tensors have no version counter: it may be stale

    def export(self, out: Any, func: Any) -> None:
        """Note that the script can access the memory of the whole, if `out` exposes it."""
        whole, name = self._whole, getattr(func, "__name__", "")
        if whole is not None and not transform() and exposes(out, whole, name):
            raw = whole.device.type == "cpu" or name in RAW  # a CPU view can become an array
            self.aliases.export(whole, self._local, self.sizes, self.shard_dim, raw)


def wrap(local: Tensor, spec: Spec, aliases: AliasGroup | None = None) -> ShardedTensor:
    """Return a sharded tensor of this local shard, placed as in `spec`."""
    strides, shape = None, local.shape
    if shape != spec.local_shape:  # a float decides it, as in `interpolate(x, scale_factor=2.0)`
        spec = spec.sizes.spec(tuple(shape), spec.dim)
    if local.layout is STRIDED:
        strides = spec.strides.get(local.stride(), UNKNOWN)
        if strides is UNKNOWN:
            strides = spec.strides_for(local)
    made: ShardedTensor = make_wrapper(
        ShardedTensor, spec.shape, strides=strides, dtype=local.dtype, device=local.device
    )
    made._local, made.spec = local, spec
    if aliases is not None:
        made.aliases_if_any = aliases
    return made


class Partial(DistributedTensor, metaclass=TensorType):
    """A 0-dim sum over ranks, of which each rank holds a term; it is reduced when it is read."""

    owner: View
    local: Tensor
    declared: torch.dtype
    _part: Part
    _node: str
    _value: Tensor | None = None
    _written = 0

    @staticmethod
    def __new__(
        cls: type[Partial],
        local: Tensor,
        view: View,
        dtype: torch.dtype | None = None,
        known: Part | None = None,
        node: str = "",
    ) -> Partial:
        declared = dtype or local.dtype
        made: Partial = make_wrapper(cls, (), dtype=declared, device=local.device)
        made.local, made.owner, made.declared = local, view, declared
        made._part, made._node = known or view.pending.add(local), node
        return made

    @property
    def node(self) -> str:
        """Return the name of the `grad_fn` that the sum has in one process."""
        return self._node or node_name(self.local)

    @property
    def unread(self) -> bool:
        """Return whether `local` is up to date: nobody has written into the reduced value."""
        return self._value is None or self._value._version == self._written

    def full(self) -> Tensor:
        """Return the sum; reading it reduces all pending sums."""
        needs = self.local.requires_grad and torch.is_grad_enabled()
        value = self._value
        if value is not None and (value.requires_grad or not needs or not self.unread):
            return value
        if self._part.total is None:
            self.owner.pending.reduce()
        total = self._part.total
        assert total is not None
        local = self.local.to(self.declared)
        summed = with_node_name(SumOverRanks, self.node) if needs else SumOverRanks
        value = summed.apply(local, self.owner.group, total.to(self.declared))
        if not value.is_inference():
            self._value, self._written = value, value._version
        return value


for _kind in (DistributedTensor, ShardedTensor, Partial):
    _kind.__name__, _kind.__qualname__, _kind.__module__ = "Tensor", "Tensor", "torch"


def is_sharded(x: object) -> TypeGuard[ShardedTensor]:
    """Return whether `x` is a sharded tensor."""
    return type(x) is ShardedTensor


def full(x: Any) -> Any:
    """Return `x` as in one process: gathered if it is sharded, reduced if it is partial."""
    kind = type(x)  # faster than `isinstance`, which reads `__class__`
    return x.full() if kind is ShardedTensor or kind is Partial else x


def leaves_in(args: Any, kwargs: dict[str, Any]) -> list[Any]:
    """Return the arguments of a call, flattened as a pytree if any is a container."""
    given = [*args, *kwargs.values()]
    flat = all(kind in PLAIN or issubclass(kind, Tensor) for kind in {*map(type, given)})
    return given if flat else tree_leaves(given)
