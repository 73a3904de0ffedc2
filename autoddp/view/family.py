"""Rows that share memory, as one is a view of the other, and what the script holds of it."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from autoddp.report import users_line
from autoddp.view.boundaries import all_rows, part

if TYPE_CHECKING:
    from autoddp.view.cuts import Cuts
    from autoddp.view.rows import Rows

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

    def __init__(self, whole: Tensor, rows: Tensor, cuts: Cuts, at: int) -> None:
        self.whole, self.rows, self.cuts, self.at = whole.detach(), rows.detach(), cuts, at
        self.raw = whole.is_inference()
        self.seen = version(whole)
        self.kept: Tensor | None = None  # the whole as it was, where several of a family are lent

    def take_over(self) -> None:
        """Bring the rows up to date; what is written through raw memory counts no version."""
        mine = part(self.whole, self.cuts, self.at)
        if version(self.whole) == self.seen and (not self.raw or same(mine, self.rows)):
            return
        self.seen = version(self.whole)
        with torch.no_grad(), as_made(self.rows):
            self.rows.copy_(mine)

    def keep(self) -> None:
        """Keep a copy of the whole: all ranks tell a later write alike by it, not by rows."""
        self.kept = self.whole.clone()

    def written(self) -> bool:
        """Return whether somebody wrote into the whole since `keep`; all ranks agree on that."""
        return self.kept is not None and not same(self.whole, self.kept)

    def give(self) -> None:
        """Bring what was written, and nothing else, to the rows, where others may be newer."""
        assert self.kept is not None
        new, old = (part(x, self.cuts, self.at) for x in (self.whole, self.kept))
        with torch.no_grad(), as_made(self.rows):
            self.rows.copy_(
                torch.where((new == old) | ((new != new) & (old != old)), self.rows, new)
            )

    def refresh(self) -> None:
        """Bring the whole up to date, after all ranks wrote into their rows."""
        with torch.no_grad(), as_made(self.whole):
            self.whole.copy_(all_rows(self.rows, self.cuts, self.at))
        self.seen = version(self.whole)
        if self.kept is not None:
            self.keep()


class WholeFamily:
    """Rows that share memory, because one is a view of the other.

    This rank's rows are the truth. A gathered whole is a copy, until somebody writes into it: then
    it is the newer truth, and is taken over before anyone reads a member again. A whole that is
    lent to the script follows what is written into the rows, too.

    Attributes:
        apart: Whether a member is another's `.data`, which counts its writes by itself.
    """

    __slots__ = ("apart", "gathered", "lent")

    def __init__(self) -> None:
        self.gathered: list[weakref.ref[Rows]] = []
        # kept as long as a member lives: ranks must agree on them
        self.lent: dict[Any, ExportedBuffer] = {}
        self.apart = False

    def take_over(self) -> None:
        """Bring the rows up to date with what was written into a gathered whole."""
        for reference in self.gathered:
            rows = reference()
            if rows is not None:
                rows.take_over()
        if len(self.lent) == 1:
            next(iter(self.lent.values())).take_over()
            return
        written = [lent for lent in self.lent.values() if lent.written()]
        for lent in written:
            lent.give()
        if written:
            self.refresh()  # several may hold the same elements

    def lend(self, whole: Tensor, rows: Tensor, cuts: Cuts, at: int, raw: bool) -> None:
        """Note that the script holds memory of `whole`; with `raw`, torch sees no writes there."""
        key = place(rows)
        if raw and whole.device.type != "cpu":
            cuts.view.report.say_once("raw memory", users_line(), COMPARED)
        if key not in self.lent:
            self.lent[key] = ExportedBuffer(whole, rows, cuts, at)
        self.lent[key].raw |= raw
        if len(self.lent) > 1:
            for lent in self.lent.values():
                if lent.kept is None:
                    lent.keep()

    @property
    def raw(self) -> bool:
        """Return whether rows may be written into on some ranks only.

        Then no rank can tell what is up to date.
        """
        return any(lent.raw for lent in self.lent.values())

    def borrowed(self, rows: Tensor) -> Tensor | None:
        """Return the whole of these rows that the script holds already, as it has one memory."""
        lent = self.lent.get(place(rows))
        return None if lent is None else lent.whole

    def refresh(self) -> None:
        """Bring lent wholes up to date, after all ranks wrote into rows at the same point."""
        for lent in self.lent.values():
            lent.refresh()


def place(rows: Tensor) -> Any:
    """Return what part of the memory of the family these rows are."""
    return rows.data_ptr(), rows.dtype, tuple(rows.shape), rows.stride()


def shows(out: Any, whole: Tensor, name: str) -> bool:
    """Return whether `out`, returned by a function, lets the script see the memory of `whole`."""
    if name == "__reduce_ex__":
        return True  # copy.copy() and a queue to another process make tensors of the same memory
    if isinstance(out, (list, tuple)):
        return any(shows(o, whole, name) for o in out[:1])  # the parts of a batch are all alike
    if isinstance(out, Tensor) and out.layout is torch.strided:
        return out.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
    return not isinstance(out, Tensor) and name in RAW


@contextmanager
def as_made(x: Tensor) -> Iterator[None]:
    """Run under inference_mode() in here if `x` was made there, else outside."""
    if x.is_inference() == torch.is_inference_mode_enabled():
        yield
    else:
        with (
            torch.inference_mode(x.is_inference()),
            torch.set_grad_enabled(torch.is_grad_enabled()),
        ):
            yield


def take(rows: Tensor, new: Tensor) -> None:
    """Write into rows what was written elsewhere; no leaf takes that with a graph."""
    leaf = rows.requires_grad and rows.is_leaf
    with as_made(rows), torch.no_grad() if leaf else nullcontext():
        rows.copy_(new)


def version(x: Tensor) -> int:
    """Return how often torch saw `x` written.

    What is made under inference_mode() counts nothing: -1.
    """
    return -1 if x.is_inference() else x._version


def same(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors hold the same values; NaN is equal to NaN."""
    return torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())


def is_shape(x: Any) -> bool:
    """Return whether this is a shape, which pytree makes a tuple: for `Tensor.new`, of values."""
    return isinstance(x, torch.Size)
