"""What came of what in a trial: whether an output came of something that is no part of its row.

A result that came of the rows of a batch, but whose shape is the same however many there are, holds
something of several rows, as a sum over them, or of one for all. What is computed of it couples the
rows, though it may not show: a bound that is not reached hides it, or a zero that it is multiplied
by. So a trial follows each result, and compares the shapes of two forwards with unlike numbers of
rows, operator by operator.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from autoddp.torch_internals import is_mutable, plain_tensors

# operators of sorted rows, and which of the tensors that they are given says where a group ends
ENDS = {"_grouped_mm": 2}
# operators that give numbers of shapes, types and memory alone
OF_SHAPES = {
    *("is_same_size", "_debug_has_internal_overlap", "_fused_sdp_choice", "result_type"),
    *("cudnn_is_acceptable", "is_complex", "is_floating_point", "is_signed", "is_contiguous"),
    *("is_conj", "is_neg", "is_pinned", "is_inference", "is_set_to", "size", "stride", "dim"),
    *("_use_cudnn_ctc_loss", "_use_miopen_ctc_loss", "sym_size", "sym_stride", "sym_numel"),
}
# operators whose results have a length, which Python may read, that comes of the values of all rows
COUNTS = {"_unique", "_unique2", "unique_consecutive", "unique_dim"}
CHECK = "_linalg_check_errors"  # raises where one of the matrices has no inverse, or the like
ROWS = 0  # the number of the first result: the rows themselves


class Result(NamedTuple):
    """The result of an operator on the rows: its name, what went into it, and its shape."""

    operator: str
    sources: frozenset[int]
    shape: torch.Size


class Flow:
    """The results of one forward that came of its rows, each by its number.

    What is written into memory reaches all tensors that lie there.
    """

    def __init__(self, rows: Iterable[Tensor]) -> None:
        self.results = [Result("", frozenset(), torch.Size())]
        self._numbers: Any = WeakTensorKeyDictionary()
        self._written: dict[int, frozenset[int]] = {}
        for x in rows:
            self._numbers[x] = ROWS

    def sources(self, x: Any) -> frozenset[int]:
        """Return the results that a tensor holds: its own, and what was written where it lies."""
        if not isinstance(x, Tensor):
            return frozenset()
        number = self._numbers.get(x)
        own = frozenset() if number is None else frozenset([number])
        return own | self._written.get(memory_of(x), frozenset()) if self._written else own

    def note(self, operator: Any, given: list[Tensor], out: Any) -> None:
        """Note what an operator has made of these tensors."""
        name, changes = operator.overloadpacket.__name__, is_mutable(operator)
        taken = (x for k, x in enumerate(given) if k != ENDS.get(name))
        sources = frozenset[int]().union(*map(self.sources, taken))
        if _takes_no_values(name):
            sources = frozenset()
        there = {memory_of(x) for x in given} if self._written else set()
        for x in tree_leaves(out):
            if not isinstance(x, Tensor):
                continue
            if self._written and not changes and memory_of(x) not in there:
                self._written.pop(memory_of(x), None)  # memory that was free meanwhile
            if not sources:
                continue
            self._numbers[x] = number = len(self.results)
            self.results.append(Result(name, sources, x.shape))
            if changes:
                known = self._written.get(memory_of(x), frozenset())
                self._written[memory_of(x)] = known | {number}


def memory_of(x: Tensor) -> int:
    """Return what tells the memory of a tensor from another's, 0 if it has no plain one."""
    with plain_tensors():
        return x.untyped_storage()._cdata if x.layout is torch.strided else 0


def coupled(whole: Flow, part: Flow) -> set[int]:
    """Return the results of the whole that hold something of other rows, by its flow and a part's.

    Two forwards that did not take the same steps, as one that goes through its rows one by one, do
    not tell: then there are none.
    """
    found: set[int] = set()
    if [x.operator for x in whole.results] != [x.operator for x in part.results]:
        return found
    for number, (mine, other) in enumerate(zip(whole.results, part.results, strict=True)):
        if mine.sources and (mine.shape == other.shape or not found.isdisjoint(mine.sources)):
            found.add(number)
    return found


def tells_values(operator: Any) -> bool:
    """Return whether an operator gives Python a number that comes of its tensors' elements."""
    name, returns = operator.overloadpacket.__name__, operator._schema.returns
    if name in COUNTS or name == CHECK:
        return True
    given = returns and not any("Tensor" in str(each.type) for each in returns)
    return bool(given) and name not in OF_SHAPES


def _takes_no_values(operator: str) -> bool:
    """Return whether an operator looks at the shape and the dtype of what it is given alone."""
    return operator.startswith("new_") or operator.endswith("_like")
