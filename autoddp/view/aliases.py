"""Sharded tensors that share memory, and the memory of them that the script holds."""

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
    "a batch's memory is let out, where it may be written unseen: each later use of the batch "
    "compares all of it, and the host waits for the device; let out batch.clone() instead"
)


class ExportedBuffer:
    """A gathered whole of which the script holds the memory: an array, a plain view, an address."""

    def __init__(self, whole: Tensor, rows: Tensor, sizes: ShardSizes, at: int) -> None:
        self.whole, self.rows, self.sizes, self.shard_dim = whole.detach(), rows.detach(), sizes, at
        self.raw = whole.is_inference()
        self.version_seen = version(whole)
        # rows that are a view of the whole need nothing to be copied for this rank
        self.is_view = memory_of(whole) == memory_of(rows)
        self.before: Tensor | None = (
            None  # the whole as it was, where several of a family are exported
        )

    def sync_rows(self) -> None:
        """Bring the rows up to date; what is written through raw memory counts no version."""
        unwritten = version(self.whole) == self.version_seen
        if self.is_view or (unwritten and not self.raw):
            return
        mine = shard(self.whole, self.sizes, self.shard_dim)
        if unwritten and equal_values(mine, self.rows):
            return
        self.version_seen = version(self.whole)
        with torch.no_grad(), inference_mode_of(self.rows):
            self.rows.copy_(mine)

    def snapshot(self) -> None:
        """Keep a copy of the whole: all ranks tell a later write alike by it, not by rows."""
        self.before = self.whole.clone()

    def written(self) -> bool:
        """Return whether somebody wrote into the whole since `keep`; all ranks agree on that."""
        return self.before is not None and not equal_values(self.whole, self.before)

    def merge(self) -> None:
        """Bring what was written, and nothing else, to the rows, where others may be newer."""
        assert self.before is not None
        new, old = (shard(x, self.sizes, self.shard_dim) for x in (self.whole, self.before))
        with torch.no_grad(), inference_mode_of(self.rows):
            self.rows.copy_(
                torch.where((new == old) | ((new != new) & (old != old)), self.rows, new)
            )

    def refresh(self) -> None:
        """Bring the whole up to date, after all ranks wrote into their rows.

        Where the rows are a view of it the write has been counted, and may be so only once.
        """
        with torch.no_grad(), inference_mode_of(self.whole):
            whole = self.whole.data if self.is_view else self.whole
            whole.copy_(all_gather_rows(self.rows, self.sizes, self.shard_dim))
        self.version_seen = version(self.whole)
        if self.before is not None:
            self.snapshot()


class AliasGroup:
    """Sharded tensors that share memory, because one is a view of the other.

    This rank's rows are the truth. A gathered whole is a copy, until somebody writes into it: then
    it is the newer truth, and is taken over before anyone reads a member again. A whole that is
    exported to the script follows what is written into the rows, too.

    Attributes:
        apart: Whether a member is another's `.data`, which counts its writes by itself.
    """

    __slots__ = ("exported", "gathered", "separate_versions")

    def __init__(self) -> None:
        self.gathered: list[weakref.ref[ShardedTensor]] = []
        # kept as long as a member lives: ranks must agree on them
        self.exported: dict[Any, ExportedBuffer] = {}
        self.separate_versions = False

    def sync_rows(self) -> None:
        """Bring the rows up to date with what was written into a gathered whole."""
        for reference in self.gathered:
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
            self.refresh()  # several may hold the same elements

    def export(self, whole: Tensor, rows: Tensor, sizes: ShardSizes, at: int, raw: bool) -> None:
        """Note that the script holds memory of `whole`; with `raw`, torch sees no writes there."""
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

    @property
    def raw(self) -> bool:
        """Return whether rows may be written into on some ranks only.

        Then no rank can tell what is up to date.
        """
        return any(exported.raw for exported in self.exported.values())

    def exported_whole(self, rows: Tensor) -> Tensor | None:
        """Return the whole of these rows that the script holds already, as it has one memory."""
        exported = self.exported.get(region_of(rows))
        return None if exported is None else exported.whole

    def refresh(self) -> None:
        """Bring exported wholes up to date, after all ranks wrote into rows at the same point."""
        for exported in self.exported.values():
            exported.refresh()
        for reference in self.gathered:
            rows = reference()
            if rows is not None:
                rows.note_refresh()


def region_of(rows: Tensor) -> Any:
    """Return what part of the memory of the family these rows are."""
    return rows.data_ptr(), rows.dtype, tuple(rows.shape), rows.stride()


def exposes_memory(out: Any, whole: Tensor, name: str) -> bool:
    """Return whether `out`, returned by a function, lets the script see the memory of `whole`."""
    if name == "__reduce_ex__":
        return True  # copy.copy() and a queue to another process make tensors of the same memory
    if isinstance(out, (list, tuple)):
        return any(
            exposes_memory(o, whole, name) for o in out[:1]
        )  # the parts of a batch are all alike
    if isinstance(out, Tensor) and out.layout is torch.strided:
        return memory_of(out) == memory_of(whole)
    return not isinstance(out, Tensor) and name in RAW


@contextmanager
def inference_mode_of(x: Tensor) -> Iterator[None]:
    """Run under inference_mode() in here if `x` was made there, else outside."""
    if x.is_inference() == torch.is_inference_mode_enabled():
        yield
    else:
        with (
            torch.inference_mode(x.is_inference()),
            torch.set_grad_enabled(torch.is_grad_enabled()),
        ):
            yield


def memory_of(x: Tensor) -> int | None:
    """Return what tells the memory that `x` shares with its views, None for other layouts."""
    if x.layout is not torch.strided:
        return None
    storage: Any = x.untyped_storage()  # in a compiler's trace it has no address
    return storage._cdata if isinstance(x, FunctionalTensor) else storage.data_ptr()


def overwrite(rows: Tensor, new: Tensor) -> None:
    """Write into rows what was written elsewhere; no leaf takes that with a graph."""
    if rows.data_ptr() == new.data_ptr() and rows.stride() == new.stride():
        return
    leaf = rows.requires_grad and rows.is_leaf
    with inference_mode_of(rows), torch.no_grad() if leaf else nullcontext():
        rows.copy_(new)


def version(x: Tensor) -> int:
    """Return how often torch saw `x` written.

    What is made under inference_mode() counts nothing: -1.
    """
    return -1 if x.is_inference() else x._version


def equal_values(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors hold the same values; NaN is equal to NaN."""
    return torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())


def is_shape(x: Any) -> bool:
    """Return whether this is a shape, which pytree makes a tuple: for `Tensor.new`, of values."""
    return isinstance(x, torch.Size)
