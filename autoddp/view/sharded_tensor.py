"""`ShardedTensor`, a batch that is sharded over ranks, and `Partial`, a sum not reduced yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeGuard

import torch
from torch import Tensor

from autoddp.view.aliases import Base, Path, Step, along
from autoddp.view.pending_sums import Computed, Part
from autoddp.view.redistribute import SumOverRanks, node_name, with_node_name
from autoddp.view.shard_sizes import ShardSizes, Spec
from autoddp.view.state import View

STRIDED, make_wrapper = torch.strided, Tensor._make_wrapper_subclass


class TensorType(type(Tensor)):  # type: ignore[misc]  # torch's stub does not know it for a class
    """Metaclass of tensor types that equal `torch.Tensor`; `is` cannot be overridden."""

    def __eq__(cls, other: object) -> bool:
        return other is Tensor or cls is other

    __hash__ = type.__hash__  # registries of types (copyreg, pytree) still distinguish them


class DistributedTensor(Tensor, metaclass=TensorType):
    """Base of the tensors that are spread over ranks; `dispatch.py` defines their functions.

    Attributes are in slots: libraries copy `x.__dict__`, which has what the script has put there.
    """

    __slots__ = ()

    @property  # type: ignore[misc]
    def __class__(self) -> type[Tensor]:  # type: ignore[override]
        return Tensor

    @property
    def is_nested(self) -> bool:  # type: ignore[override]
        return False  # here, as a layer of a transformer asks four times

    def __init__(self, *_: Any, **__: Any) -> None:
        """Do nothing: `__new__` has set all attributes."""


class ShardedTensor(DistributedTensor, metaclass=TensorType):
    """A tensor with the shape of the whole batch, of which this rank holds a shard.

    A function without a rule gathers the batch, and runs on the whole of it on every rank.

    Args:
        local: This rank's shard.
        sizes: The number of rows on each rank.
        dim: The shard dimension.
    """

    __slots__ = ("_local", "_seen", "_whole", "base", "path", "spec")
    spec: Spec
    _local: Tensor
    base: Base | None  # made when it is needed
    path: Path  # of the functions that make this view of its base
    _whole: Tensor | None  # of a small view that was gathered without its base
    _seen: int  # the writes into its memory then

    @staticmethod
    def __new__(
        cls: type[ShardedTensor], local: Tensor, sizes: ShardSizes, dim: int = 0
    ) -> ShardedTensor:
        return wrap(local, sizes.spec(tuple(local.shape), dim))

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
    def based(self) -> Base:
        """Return the base of this tensor, which is its own if it is no view."""
        if self.base is None:
            self.base = Base(self._local, self.spec)
        return self.base

    @property
    def local(self) -> Tensor:
        """Return this rank's shard, including what was written into the whole."""
        base = self.base
        if base is not None and (base.whole is not None or base.source is not None):
            base.sync()
        return self._local

    def full(self, shared: bool = False) -> Tensor:
        """Return the whole batch; one all-gather serves all reads until the next write.

        Args:
            shared: Whether the caller may write into it, or the script get a view of it. Otherwise
                a view that is smaller than its base may be gathered alone.
        """
        base = self.based
        root = base.root
        if (
            shared
            or not self.path
            or root.whole is not None
            or self.numel() >= root.spec.shape.numel()
            or 0 in self._local.stride()  # a copy of an expanded view has another layout
        ):
            return along(self.path, base.gathered())
        rows, whole = self._local, self._whole
        needs = rows.requires_grad and torch.is_grad_enabled()
        if whole is None or self._seen != root.writes or (needs and not whole.requires_grad):
            whole = self._whole = root.gathered_alone(rows, self.spec)
            self._seen = root.writes
        return whole

    def wrote(self) -> None:
        """Note that all ranks have written into their rows of the batch."""
        if self.base is not None:
            self.base.wrote()

    def view_by(self, step: Step, local: Tensor, spec: Spec) -> ShardedTensor:
        """Return the view of this tensor that `step` makes; `local` is this rank's shard of it."""
        return wrap(local, spec, self.based, (*self.path, step))

    def detached_by(self, step: Step, local: Tensor, spec: Spec) -> ShardedTensor:
        """Return this tensor without its graph: a base of its own, in the same memory."""
        made = wrap(local, spec)
        made.base = Base(local, spec, (self.based, (*self.path, step)))
        return made

    def begin_graph(self) -> None:
        """Give a view a base of its own, in the same memory: a graph begins here."""
        if self.path:
            self.base, self.path = Base(self._local, self.spec, (self.based, self.path)), ()


def wrap(local: Tensor, spec: Spec, base: Base | None = None, path: Path = ()) -> ShardedTensor:
    """Return a sharded tensor of this local shard, placed as in `spec`, new or a view of `base`."""
    shape = local.shape
    if shape != spec.local_shape:  # a float decides it, as in `interpolate(x, scale_factor=2.0)`
        spec = spec.sizes.spec(tuple(shape), spec.dim)
    try:
        strides = spec.strides[local.stride()]
    except (KeyError, RuntimeError):  # a sparse tensor has none
        strides = spec.strides_for(local) if local.layout is STRIDED else None
    # by position, as torch parses names slowly
    made: ShardedTensor = make_wrapper(
        ShardedTensor, spec.shape, strides, None, None, local.dtype, STRIDED, local.device
    )
    made._local, made.spec = local, spec
    made.base, made.path, made._whole = base, path, None
    return made


class Partial(DistributedTensor, metaclass=TensorType):
    """A 0-dim sum over ranks, of which each rank holds a term; it is reduced when it is read.

    What `detach` returns is in the memory of its origin: a write into one reaches the other.
    """

    __slots__ = (
        *("_node", "_origin", "_part", "_value", "_written", "declared", "local", "owner"),
        "shared",
    )
    owner: View
    local: Tensor
    declared: torch.dtype
    _part: Part | Computed
    _node: str
    _value: Tensor | None  # the sum, once it was read
    _written: int  # its version then
    _origin: Partial | None  # the sum in whose memory this one is
    shared: bool  # whether another one is in its memory

    @staticmethod
    def __new__(
        cls: type[Partial],
        local: Tensor,
        view: View,
        dtype: torch.dtype | None = None,
        known: Part | Computed | None = None,
        node: str = "",
    ) -> Partial:
        declared = dtype or local.dtype
        made: Partial = make_wrapper(cls, (), dtype=declared, device=local.device)
        made.local, made.owner, made.declared = local, view, declared
        made._part, made._node = known or view.pending.add(local), node
        made._value, made._written = None, 0
        made._origin, made.shared = None, False
        return made

    def detached(self) -> Partial:
        """Return this sum without a graph, in the same memory."""
        made = Partial(self.local.detach(), self.owner, self.declared, self._part)
        if not torch.is_inference_mode_enabled():  # in which no value is kept
            made._origin = self._origin or self
            made.shared = made._origin.shared = True
        return made

    @property
    def node(self) -> str:
        """Return the name of the `grad_fn` that the sum has in one process."""
        return self._node or node_name(self.local)

    @property
    def unread(self) -> bool:
        """Return whether `local` is up to date: no write into the value, and it is not a leaf."""
        value = self._value
        if value is None:
            return self._origin is None or self._origin.unread
        return value._version == self._written and not (value.requires_grad and value.is_leaf)

    def full(self) -> Tensor:
        """Return the sum; reading it reduces all pending sums."""
        needs = self.local.requires_grad and torch.is_grad_enabled()
        value = self._value
        if value is not None and (value.requires_grad or not needs or not self.unread):
            return value
        if self._origin is not None:
            with torch.set_grad_enabled(self._origin.local.requires_grad):
                value = self._origin.full()  # in the memory of the origin, which has its graph
            self._value = value.detach()
            self._written = value._version if self._origin.unread else -1
            return self._value
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


# the tensor that a file gets of one of these classes
WRITTEN: dict[type, Callable[[Any], Tensor]] = {
    ShardedTensor: ShardedTensor.full,
    Partial: Partial.full,
}
