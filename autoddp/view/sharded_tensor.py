"""`ShardedTensor`, a batch of which this rank holds some rows, and `Partial`, an unread sum."""

from __future__ import annotations

import weakref
from contextlib import nullcontext
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from autoddp.torch_internals import outside_transforms, transform
from autoddp.view.aliases import (
    RAW,
    AliasGroup,
    equal_values,
    exposes_memory,
    inference_mode_of,
    overwrite,
    version,
)
from autoddp.view.pending_sums import Part
from autoddp.view.redistribute import Gather, SumOverRanks, node_name, shard, with_node_name
from autoddp.view.shard_sizes import ShardSizes, Spec
from autoddp.view.state import View

UNKNOWN = (-1,)
PLAIN = {int, float, bool, str, type(None), torch.dtype, torch.device}
STRIDED, make_wrapper = torch.strided, Tensor._make_wrapper_subclass


class TensorType(type(Tensor)):  # type: ignore[misc]  # torch's stub does not know it for a class
    """A metaclass: to a script its types are torch.Tensor by name and `==`; by `is` none can be."""

    def __eq__(cls, other: object) -> bool:
        return other is Tensor or cls is other

    __hash__ = type.__hash__  # registries of types (copyreg, pytree) still tell it from a Tensor


class DistributedTensor(Tensor, metaclass=TensorType):
    """A tensor to the script, which ranks hold in parts; `dispatch.py` answers its functions."""

    @property  # type: ignore[misc]
    def __class__(self) -> type[Tensor]:  # type: ignore[override]
        return Tensor

    def __init__(self, *_: Any, **__: Any) -> None:
        """Leave what `__new__` has made."""


class ShardedTensor(DistributedTensor, metaclass=TensorType):
    """A whole batch to the script; on this rank `local`, its rows along dimension `shard_dim`.

    A function without a rule gathers, and is computed on the whole by every rank.

    Args:
        local: The rows of this rank.
        sizes: How many rows each rank holds.
        dim: The dimension along which they lie.
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
        """Return the dimension along which the tensor is sharded, and how."""
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
        """Return this rank's rows, up to date."""
        shared = self.aliases_if_any
        if shared is not None and (shared.gathered or shared.exported):
            shared.sync_rows()
        return self._local

    def full(self) -> Tensor:
        """Return the whole batch, gathered once for all that read it before the next write."""
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
        exported_whole = shared.exported_whole(local) if shared.exported and not needs else None
        with outside_transforms() if transform() else nullcontext(), inference_mode_of(local):
            gather = with_node_name(Gather, node_name(local)) if needs else Gather
            whole = (
                gather.apply(local, self.sizes, self.shard_dim)
                if exported_whole is None
                else exported_whole
            )
        if self._whole is None and not whole.is_inference():
            shared.gathered.append(weakref.ref(self))
        self._whole, self._versions = whole, (version(local), version(whole))
        return whole

    def sync_rows(self, untracked: bool = False) -> None:
        """Write this rank's part of the gathered whole into the rows, if somebody wrote there."""
        whole = self._whole
        if whole is None:
            return
        untracked |= whole.is_inference()
        if not untracked and whole._version == self._versions[1]:
            return
        self._versions = (self._versions[0], version(whole))
        source = whole.detach() if untracked else whole
        mine = shard(source, self.sizes, self.shard_dim)
        if not untracked or not equal_values(mine, self._local):
            overwrite(self._local, mine)
        self._versions = (version(self._local), version(whole))

    def note_refresh(self) -> None:
        """Note that what was gathered and exported has been refreshed, which is no new write."""
        whole, exported = self._whole, self.aliases.exported_whole(self._local)
        if whole is not None and exported is not None and whole.data_ptr() == exported.data_ptr():
            self._versions = (version(self._local), version(whole))

    def refresh(self) -> None:
        """Bring up to date what the script holds of this batch, after all ranks wrote into it."""
        shared = self.aliases_if_any
        if shared is not None and shared.exported:
            shared.refresh()

    def sync_after(self, out: Any, func: Any, untracked: bool = False) -> None:
        """Take over what `func`, given the whole, wrote there; note if `out` shows its memory."""
        self.sync_rows(untracked)
        self.export(out, func)
        if self._whole is not None and self._whole.is_inference():
            self._whole = None  # it counts no versions: nobody could tell whether it is up to date

    def export(self, out: Any, func: Any) -> None:
        """Note if `out`, computed of the whole, lets the script see its memory."""
        whole, name = self._whole, getattr(func, "__name__", "")
        if whole is not None and not transform() and exposes_memory(out, whole, name):
            raw = whole.device.type == "cpu" or name in RAW  # a plain view may be read as an array
            self.aliases.export(whole, self._local, self.sizes, self.shard_dim, raw)


def wrap(local: Tensor, spec: Spec, aliases: AliasGroup | None = None) -> ShardedTensor:
    """Return the sharded tensor of this spec whose local part is `local`."""
    strides = None
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
    """A 0-dim sum over ranks of which each knows its part; reading reduces, backward() need not."""

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
        """Return the kind of `grad_fn` that the sum has in one process."""
        return self._node or node_name(self.local)

    @property
    def unread(self) -> bool:
        """Return whether `local` still stands for the sum: nobody has written into the value."""
        return self._value is None or self._value._version == self._written

    def full(self) -> Tensor:
        """Return the sum, settling all that are unread."""
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
    """Return `x` as one process has it: gathered if sharded, summed if partial."""
    kind = type(x)  # quicker than to ask for an instance, which looks at `__class__`
    return x.full() if kind is ShardedTensor or kind is Partial else x


def leaves_in(args: Any, kwargs: dict[str, Any]) -> list[Any]:
    """Return what a call is given, also in lists and the like, which few are."""
    given = [*args, *kwargs.values()]
    flat = all(type(x) in PLAIN or issubclass(type(x), Tensor) for x in given)
    return given if flat else tree_leaves(given)


def first_of(args: Any, kwargs: dict[str, Any]) -> Any:
    """Return the first sharded tensor or partial sum."""
    for x in leaves_in(args, kwargs):
        if type(x) is ShardedTensor or type(x) is Partial:
            return x
    raise AssertionError("no sharded tensor among the arguments")
