"""Sharded tensors that share memory, and gathered memory that the script can access."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from autoddp.report import users_line
from autoddp.torch_internals import FunctionalTensor
from autoddp.view.redistribute import all_gather_rows, shard

if TYPE_CHECKING:
    from autoddp.view.shard_sizes import ShardSizes
    from autoddp.view.sharded_tensor import ShardedTensor

RAW = {
    "numpy", "__array__", "__dlpack__", "data_ptr", "const_data_ptr",
    "storage", "_typed_storage", "untyped_storage", "__get__", "__reduce_ex__",
    "_to_dlpack",
}  # fmt: skip
COMPARED = (
    "the script holds the memory of a batch, where writes cannot be tracked: each later use of the "
    "batch compares all of it and waits for the device; pass batch.clone() instead"
)


class ExportedBuffer:
    """A gathered batch whose memory the script can access: as an array, a view or an address."""

    def __init__(self, whole: Tensor, rows: Tensor, sizes: ShardSizes, at: int) -> None:
        self.whole, self.rows, self.sizes, self.shard_dim = whole.detach(), rows.detach(), sizes, at
        self.raw = whole.is_inference()
        self.version_seen = version(whole)
        # writes reach rows that are a view of the whole without a copy
        self.is_view = memory_of(whole) == memory_of(rows)
        self.before: Tensor | None = None  # a copy of the whole, if the group exports several

    def sync_rows(self) -> None:
        """Copy writes into the whole to the rows; raw memory is compared, as it has no version."""
        unwritten = version(self.whole) == self.version_seen
        if self.is_view or (unwritten and not self.raw):
            return
        local = shard(self.whole, self.sizes, self.shard_dim)
        if unwritten and equal(local, self.rows):
            return
        self.version_seen = version(self.whole)
        with torch.no_grad(), same_mode(self.rows):
            self.rows.copy_(local)

    def snapshot(self) -> None:
        """Copy the whole, so that all ranks detect later writes alike, whichever rows they hold."""
        self.before = self.whole.clone()

    def written(self) -> bool:
        """Return whether the whole was written since `snapshot`; all ranks agree on it."""
        if self.before is None or (not self.raw and version(self.whole) == self.version_seen):
            return False
        return not equal(self.whole, self.before)

    def merge(self) -> None:
        """Copy only the elements that were written: others may be newer in the rows."""
        assert self.before is not None
        new, old = (shard(x, self.sizes, self.shard_dim) for x in (self.whole, self.before))
        with torch.no_grad(), same_mode(self.rows):
            self.rows.copy_(
                torch.where((new == old) | ((new != new) & (old != old)), self.rows, new)
            )

    def refresh(self) -> None:
        """Update the whole, after all ranks have written into their rows.

        If the rows are a view of it, its version counter includes that write already.
        """
        with torch.no_grad(), same_mode(self.whole):
            whole = self.whole.data if self.is_view else self.whole
            whole.copy_(all_gather_rows(self.rows, self.sizes, self.shard_dim))
        self.version_seen = version(self.whole)
        if self.before is not None:
            self.snapshot()


class AliasGroup:
    """Sharded tensors that share memory, because one is a view of another.

    The local rows are the source of truth. Writes of the script into a gathered copy are copied to
    the rows before a member is read again. An exported whole is also updated after writes into the
    rows.

    Attributes:
        separate_versions: Whether a member is another's `.data`, with a version of its own.
    """

    __slots__ = ("exported", "gathered", "separate_versions")

    def __init__(self) -> None:
        self.gathered: list[weakref.ref[ShardedTensor]] = []
        # strong references, as ranks must agree on them
        self.exported: dict[Any, ExportedBuffer] = {}
        self.separate_versions = False

    def sync_rows(self) -> None:
        """Copy writes into gathered wholes to the rows."""
        for reference in [*self.gathered]:
            rows = reference()
            if rows is not None:
                rows.sync_rows()
        if len(self.exported) == 1:
            next(iter(self.exported.values())).sync_rows()
            return
        written = [exported for exported in self.exported.values() if exported.written()]
        for exported in written:
            exported.merge()
        if written:
            self.refresh()  # exported wholes may overlap

    def export(self, whole: Tensor, rows: Tensor, sizes: ShardSizes, at: int, raw: bool) -> None:
        """Record that the script can access the memory of `whole`; `raw`: by untracked writes."""
        key = region_of(rows)
        if raw and whole.device.type != "cpu":
            sizes.view.report.say_once("raw memory", users_line(), COMPARED)
        if key not in self.exported:
            self.exported[key] = ExportedBuffer(whole, rows, sizes, at)
        self.exported[key].raw |= raw
        if len(self.exported) > 1:
            for exported in self.exported.values():
                if exported.before is None:
                    exported.snapshot()

    def exported_whole(self, rows: Tensor) -> Tensor | None:
        """Return the exported whole of these rows, if there is one."""
        exported = self.exported.get(region_of(rows))
        return None if exported is None else exported.whole

    def forget_gathered(self, kept: ShardedTensor) -> None:
        """Forget the gathered wholes of all members but one: they may be stale."""
        for reference in [*self.gathered]:
            rows = reference()
            if rows is not kept:
                self.gathered.remove(reference)
                if rows is not None:
                    rows._whole = None

    def refresh(self) -> None:
        """Update exported wholes, after all ranks have written into their rows."""
        for exported in self.exported.values():
            exported.refresh()
        for reference in self.gathered:
            rows = reference()
            if rows is not None:
                rows.note_refresh()


def region_of(rows: Tensor) -> Any:
    """Return a key for the memory of these rows: address, dtype, shape and strides."""
    return rows.data_ptr(), rows.dtype, tuple(rows.shape), rows.stride()


def exposes(out: Any, whole: Tensor, name: str) -> bool:
    """Return whether the result `out` gives the script access to the memory of `whole`."""
    if name == "__reduce_ex__":
        return True  # copy.copy() and multiprocessing queues share the memory
    if isinstance(out, (list, tuple)):
        return any(exposes(o, whole, name) for o in out[:1])  # the same holds for all parts
    if isinstance(out, Tensor) and out.layout is torch.strided:
        return memory_of(out) == memory_of(whole)
    return not isinstance(out, Tensor) and name in RAW


@contextmanager
def same_mode(x: Tensor) -> Iterator[None]:
    """Enable inference mode if `x` was created in it, else disable it."""
    if x.is_inference() == torch.is_inference_mode_enabled():
        yield
    else:
        with (
            torch.inference_mode(x.is_inference()),
            torch.set_grad_enabled(torch.is_grad_enabled()),
        ):
            yield


def memory_of(x: Tensor) -> int | None:
    """Return an identifier of the storage of `x`; None if `x` is not strided."""
    if x.layout is not torch.strided:
        return None
    storage: Any = x.untyped_storage()  # that of a FunctionalTensor has no address
    return storage._cdata if isinstance(x, FunctionalTensor) else storage.data_ptr()


def overwrite(rows: Tensor, new: Tensor, untracked: bool = False) -> bool:
    """Copy `new` into `rows`, without a graph if `rows` is a leaf that needs a gradient.

    If it is unknown whether they differ, since torch saw no write, an accelerator copies without a
    new version: one process has none either, and a comparison would wait for the device.

    Returns:
        Whether other copies of these rows may be stale without a version that shows it.
    """
    if rows.data_ptr() == new.data_ptr() and rows.stride() == new.stride():
        return False
    shared = any(n > 1 and not step for n, step in zip(rows.shape, rows.stride(), strict=True))
    unseen = untracked and not rows.is_cpu and not shared
    if untracked and not unseen and equal(new, rows):
        return False
    leaf = rows.requires_grad and rows.is_leaf
    with same_mode(rows), torch.no_grad() if leaf else nullcontext():
        (rows.data if unseen else rows).copy_(new)
    return unseen


def version(x: Tensor) -> int:
    """Return the version counter of `x`; -1 for an inference tensor, which has none."""
    return -1 if x.is_inference() else x._version


def equal(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors have equal values; NaN equals NaN."""
    return torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())


def is_shape(x: Any) -> bool:
    """Return whether `x` is a `torch.Size`, a leaf of trees: `Tensor.new` reads a tuple as data."""
    return isinstance(x, torch.Size)
