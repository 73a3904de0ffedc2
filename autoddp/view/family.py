"""Rows that share memory, because one is a view of the other, and what of it got out of our hands."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from autoddp.view.boundaries import all_rows, part

if TYPE_CHECKING:
    from autoddp.view.cuts import Cuts
    from autoddp.view.rows import Rows

RAW = {
    "numpy", "__array__", "__dlpack__", "data_ptr", "const_data_ptr",
    "storage", "_typed_storage", "untyped_storage", "__get__",
}  # fmt: skip


class Lent:
    """A gathered whole of which the script holds the memory: an array, a plain view, an address."""

    def __init__(self, whole: Tensor, rows: Tensor, cuts: Cuts, at: int) -> None:
        self.whole, self.rows, self.cuts, self.at = whole.detach(), rows.detach(), cuts, at
        self.raw = False
        self.seen = whole._version

    def take_over(self) -> None:
        """Bring the rows up to date; what is written through raw memory counts no version."""
        mine = part(self.whole, self.cuts, self.at)
        if self.whole._version == self.seen and (not self.raw or _same(mine, self.rows)):
            return
        self.seen = self.whole._version
        with torch.no_grad():
            self.rows.copy_(mine)

    def refresh(self) -> None:
        """Bring the whole up to date: all ranks wrote into their rows."""
        with torch.no_grad():
            self.whole.copy_(all_rows(self.rows, self.cuts, self.at))
        self.seen = self.whole._version


class Family:
    """Rows that share memory, because one is a view of the other.

    This rank's rows are the truth. A gathered whole is a copy, until somebody writes into it: then
    it is the newer truth, and is taken over before anyone reads a member again. A whole that is lent
    to the script follows what is written into the rows, too.
    """

    __slots__ = ("gathered", "lent")

    def __init__(self) -> None:
        self.gathered: list[weakref.ref[Rows]] = []
        self.lent: dict[Any, Lent] = {}  # kept as long as a member lives: ranks must agree on them

    def take_over(self) -> None:
        """Bring the rows up to date with what was written into a gathered whole."""
        for reference in self.gathered:
            rows = reference()
            if rows is not None:
                rows.take_over()
        for lent in self.lent.values():
            lent.take_over()

    def lend(self, whole: Tensor, rows: Tensor, cuts: Cuts, at: int, raw: bool) -> None:
        """Note that the script holds memory of `whole`; with `raw`, in a way that torch does not see."""
        key = place(rows)
        if key not in self.lent:
            self.lent[key] = Lent(whole, rows, cuts, at)
        self.lent[key].raw |= raw

    def borrowed(self, rows: Tensor) -> Tensor | None:
        """The whole of these rows that the script holds already: there is one memory of them."""
        lent = self.lent.get(place(rows))
        return None if lent is None else lent.whole

    def refresh(self) -> None:
        """Rows of the family were written into, by all ranks at the same point of the script."""
        for lent in self.lent.values():
            lent.refresh()


def place(rows: Tensor) -> Any:
    """Which part of the memory of the family these rows are."""
    return rows.data_ptr(), rows.dtype, tuple(rows.shape), rows.stride()


def shows(out: Any, whole: Tensor, name: str) -> bool:
    """Whether what a function returned lets the script see the memory of the whole."""
    if isinstance(out, (list, tuple)):
        return any(shows(o, whole, name) for o in out[:1])  # the parts of a batch are all alike
    if isinstance(out, Tensor) and out.layout is torch.strided:
        return out.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
    return not isinstance(out, Tensor) and name in RAW


def _same(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())  # NaN is equal to NaN
