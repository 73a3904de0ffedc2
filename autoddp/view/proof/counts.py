"""What a forward decides by how many rows there are.

A trial sees few rows, and a part of them; the whole batch has more. Where a forward compares a size
with a number (`if x.size(0) > 64`), the trial may go one way and the whole batch another. So the
sizes that a trial reads are numbers that note what they are compared with. A size of the rows grows
with them, and forwards of two unlike numbers of rows show how. So what was decided can be asked
again for any number of rows: see `Decisions`.
"""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from autoddp.torch_internals import dispatch_depth

if TYPE_CHECKING:
    from autoddp.view.cuts import Cuts

SHAPE: Any = Tensor.shape
# comparisons, and what they are from behind
TURNED = {
    **{"__lt__": "__gt__", "__le__": "__ge__", "__gt__": "__lt__", "__ge__": "__le__"},
    **{"__eq__": "__eq__", "__ne__": "__ne__"},
}


class Term(NamedTuple):
    """A number that a rule makes of sizes, or a size that was read.

    Attributes:
        rule: The name of a function in `operator`; empty for a size.
        parts: Terms and numbers; of a size its place among those that were read, or, once it is
            known how it grows, how much it grows with each row, and what it is of none.
    """

    rule: str
    parts: tuple[Any, ...]

    def value(self, rows: int) -> Any:
        """Return the number where there are so many rows."""
        if not self.rule:
            return self.parts[0] * rows + self.parts[1]
        known = (x.value(rows) if isinstance(x, Term) else x for x in self.parts)
        return getattr(operator, self.rule)(*known)


class NotedSize(int):
    """A size that notes what it is compared with; in all else it is an `int`."""

    asked: Asked
    term: Term

    def __new__(cls, value: int, asked: Asked, term: Term) -> NotedSize:
        made = super().__new__(cls, value)
        made.asked, made.term = asked, term
        return made

    __hash__ = int.__hash__

    def __reduce__(self) -> Any:
        return int, (int(self),)

    def __bool__(self) -> bool:
        return self != 0


def unnoted(x: Any) -> type:
    """Return the type of a value, as it is outside of a trial."""
    return int if type(x) is NotedSize else type(x)


def _computed(rule: str) -> Callable[..., Any]:
    plain = getattr(int, rule)

    def compute(self: NotedSize, *other: Any) -> Any:
        made, asked = plain(self, *other), _listener(self, *other)
        if asked is None or type(made) is not int:
            return made
        parts = tuple(asked.term(x) for x in (self, *other))
        if rule.startswith("__r"):
            return NotedSize(made, asked, Term(f"__{rule[3:]}", parts[::-1]))
        return NotedSize(made, asked, Term(rule, parts))

    return compute


def _compared(rule: str) -> Callable[..., Any]:
    plain = getattr(int, rule)

    def compare(self: NotedSize, other: Any) -> Any:
        found, asked = plain(self, other), _listener(self, other)
        if found is NotImplemented and type(other) is float:
            found = getattr(operator, rule)(int(self), other)
        if asked is not None and found is not NotImplemented:
            one, two = asked.term(self), asked.term(other)
            turned = not isinstance(one, Term)  # as Python does where the first is no such number
            asked.terms.append(Term(TURNED[rule], (two, one)) if turned else Term(rule, (one, two)))
        return found

    return compare


def _listener(*numbers: Any) -> Asked | None:
    """Return what notes now; a size that a forward before has left somewhere is a plain number."""
    heard = (x.asked for x in numbers if isinstance(x, NotedSize) and x.asked.listens)
    return next(heard, None)


for _name in ("add", "sub", "mul", "floordiv", "mod"):
    for _rule in (f"__{_name}__", f"__r{_name}__"):
        setattr(NotedSize, _rule, _computed(_rule))
for _rule in ("__neg__", "__abs__"):
    setattr(NotedSize, _rule, _computed(_rule))
for _rule in TURNED:
    setattr(NotedSize, _rule, _compared(_rule))


class Asked:
    """The sizes that a forward of so many rows read, in turn, and what it compared of them."""

    def __init__(self, rows: int) -> None:
        self.rows, self.listens = rows, False
        self.sizes: list[int] = []
        self.terms: list[Term] = []

    def term(self, x: Any) -> Any:
        """Return the term of a size that was read here; all else is a number."""
        if not isinstance(x, NotedSize):
            return x
        return x.term if x.asked is self else int(x)

    def noted(self, found: Any) -> Any:
        """Note a size, or the sizes in a shape; return it as numbers that note."""
        if type(found) is torch.Size:
            return torch.Size([self.noted(x) for x in found])
        if type(found) is not int:  # a tensor where torch.jit.trace runs
            return found
        self.sizes.append(found)
        return NotedSize(found, self, Term("", (len(self.sizes) - 1,)))

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Note what Python reads on this thread, under the modes that are on now."""
        this, depth = get_ident(), dispatch_depth()

        def reads() -> bool:  # not inside a mode, or an operator's own Python
            return get_ident() == this and dispatch_depth() == depth

        def noting(plain: Callable[..., Any]) -> Callable[..., Any]:
            def read(x: Any, *args: Any, **kwargs: Any) -> Any:
                found = plain(x, *args, **kwargs)
                return self.noted(found) if reads() else found

            return read

        plain_length = builtins.len

        def length(x: Any) -> int:
            found = plain_length(x)
            return self.noted(found) if isinstance(x, Tensor) and reads() else found

        with ExitStack() as undo:
            for name in ("size", "numel", "nelement"):
                _replace(Tensor, name, noting(getattr(Tensor, name)), undo)
            _replace(Tensor, "shape", property(noting(SHAPE.__get__)), undo)
            _replace(builtins, "len", length, undo)
            undo.callback(setattr, self, "listens", False)
            self.listens = True
            yield


def _replace(owner: Any, name: str, value: Any, undo: ExitStack) -> None:
    """Set an attribute; afterwards what the owner had itself is back, or what it inherits."""
    if name in vars(owner):
        undo.callback(setattr, owner, name, vars(owner)[name])
    else:
        undo.callback(delattr, owner, name)
    setattr(owner, name, value)


class Decisions:
    """The comparisons of a forward whose outcome may depend on how many rows there are.

    Args:
        terms: Each with its outcome where the forward was tried: the proof is of the way it went.
    """

    def __init__(self, terms: tuple[tuple[Term, bool], ...] = ()) -> None:
        self.terms = terms
        self._known: dict[tuple[int, ...], bool] = {}

    def alike(self, cuts: Cuts) -> bool:
        """Return whether all fall out so for the whole batch, and for the rows of each rank."""
        if not self.terms:
            return True
        numbers = cuts.total, *(size * cuts.turns for size in cuts.sizes)
        if numbers not in self._known:
            self._known[numbers] = self._alike({*numbers})
        return self._known[numbers]

    def _alike(self, numbers: set[int]) -> bool:
        try:
            return all(x.value(n) == outcome for x, outcome in self.terms for n in numbers)
        except ZeroDivisionError:
            return False


def decided(whole: Asked, part: Asked) -> Decisions | None:
    """Return what two forwards of unlike numbers of rows have decided by them.

    None where they have not compared the same, or not with the same outcome, or a size grows by
    leaps.
    """
    if whole.terms != part.terms or len(whole.sizes) != len(part.sizes):
        return None
    found = {}
    for term in dict.fromkeys(whole.terms):
        grown = _grown(term, whole, part)
        if grown is None or grown.value(whole.rows) != grown.value(part.rows):
            return None
        if _grows(grown):
            found[grown] = grown.value(whole.rows)
    return Decisions(tuple(found.items()))


def _grown(term: Any, whole: Asked, part: Asked) -> Any:
    """Return a term with its sizes as they grow with the rows; None if one does so by leaps."""
    if not isinstance(term, Term):
        return term
    if term.rule:
        parts = tuple(_grown(x, whole, part) for x in term.parts)
        return None if any(x is None for x in parts) else Term(term.rule, parts)
    (at,) = term.parts
    step, leap = divmod(whole.sizes[at] - part.sizes[at], whole.rows - part.rows)
    return None if leap else Term("", (step, whole.sizes[at] - step * whole.rows))


def _grows(term: Any) -> bool:
    """Return whether a number may be another one where there are more rows."""
    if not isinstance(term, Term):
        return False
    if not term.rule:
        return bool(term.parts[0])
    one, *others = term.parts
    if others == [one] and (term.rule in TURNED or term.rule == "__sub__"):
        return False
    return any(map(_grows, term.parts))
