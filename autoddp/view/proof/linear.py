"""Whether a backward is linear in the gradient that it is given, as its source tells.

In a split call a gradient is larger than one process's, by how many times more rows the batch has
than this rank. Where a backward clips it, takes its sign or adds a constant, that would show.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

# what makes of a gradient something of its shape or type alone
FORMS = {
    "shape",
    "dtype",
    "device",
    "size",
    "dim",
    "zeros_like",
    "ones_like",
    "is_complex",
    "layout",
}
# what is linear in what it is called on, or in its first argument
LINEAR = {
    *("clone", "contiguous", "to", "type_as", "float", "double", "half", "neg", "neg_", "view_as"),
    *("detach", "conj", "real", "imag", "tuple", "requires_grad_"),
}
LIKE = {"type_as", "view_as", "to"}  # take the form alone of what they are given
PRODUCTS, QUOTIENTS, SUMS = {"mul", "mul_"}, {"div", "div_"}, {"add", "add_", "sub", "sub_"}
CHOICES = {"where", "masked_fill", "masked_fill_"}


def is_linear(function: Any) -> bool:
    """Return whether a backward's source is certain to be linear in the gradients it is given."""
    return _Reading(function).holds()


class _Reading:
    """A reading of a backward's source; `names` are those of gradients and of what came of them."""

    def __init__(self, function: Any) -> None:
        self.function = function
        given = function.args
        every = [*given.posonlyargs, *given.args, given.vararg]
        self.names = {each.arg for each in every[1:] if each is not None}
        before = set[str]()
        while before != self.names:
            before = set(self.names)
            for targets, value in self._assigned():
                if self._of(value):
                    self.names |= {name for t in targets for name in _stored(t)}

    def holds(self) -> bool:
        return all(map(self._keeps, ast.walk(self.function)))

    def _assigned(self) -> Iterator[tuple[list[Any], Any]]:
        for node in ast.walk(self.function):
            if isinstance(node, ast.Assign):
                yield node.targets, node.value
            elif isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.NamedExpr)) and node.value:
                yield [node.target], node.value

    def _of(self, node: Any) -> bool:
        """Return whether an expression holds values of a gradient."""
        if isinstance(node, ast.Name):
            return node.id in self.names
        if isinstance(node, ast.Attribute) and node.attr in FORMS:
            return False
        if isinstance(node, ast.Call) and _name(node.func) in FORMS:
            return False
        if isinstance(node, ast.Call) and _name(node.func) in LIKE:
            return self._of(node.func)
        return any(map(self._of, ast.iter_child_nodes(node)))

    def _both(self, a: Any, b: Any) -> bool:
        """Return whether the sum of two expressions, or one of the two, is linear."""
        return (self._of(a) or _is_zero(a)) and (self._of(b) or _is_zero(b))

    def _keeps(self, node: Any) -> bool:
        """Return whether this part of the source leaves the whole linear."""
        if isinstance(node, (ast.BinOp, ast.AugAssign)):
            a, b = (getattr(node, n, None) for n in ("left", "right"))
            if isinstance(node, ast.AugAssign):
                a, b = node.target, node.value
            return self._combines(type(node.op), a, b)
        if isinstance(node, ast.Compare):
            plain = all(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops)
            return plain or not self._of(node)
        if isinstance(node, (ast.If, ast.IfExp)):
            return isinstance(node.test, ast.Compare) or not self._of(node.test)
        if isinstance(node, ast.Call):
            return not self._of(node) or self._calls(node)
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Subscript) for t in node.targets):
            return all(
                not self._of(t.value) or (not self._of(t.slice) and self._both(node.value, t.value))
                for t in node.targets
                if isinstance(t, ast.Subscript)
            )
        return not isinstance(node, ast.Return) or self._returns(node.value)

    def _combines(self, operator: type, a: Any, b: Any) -> bool:
        of_a, of_b = self._of(a), self._of(b)
        if operator is ast.Mult:
            return not (of_a and of_b)
        if operator is ast.Div:
            return not of_b
        if operator in (ast.Add, ast.Sub):
            return self._both(a, b) or not (of_a or of_b)
        return not (of_a or of_b)

    def _calls(self, call: ast.Call) -> bool:
        """Return whether a call that is given a gradient is linear in it."""
        name, given = _name(call.func), list(call.args)
        if isinstance(call.func, ast.Attribute) and self._of(call.func.value):
            given.insert(0, call.func.value)
        rest = [*given[1:], *(each.value for each in call.keywords)]
        if name in LINEAR:
            return not any(map(self._of, rest))
        if len(given) != (3 if name in CHOICES else 2) or call.keywords:
            return False
        if name in CHOICES:
            condition, a, b = given if name == "where" else (given[1], given[0], given[2])
            if name == "where" and self._of(call.func):  # x.where(condition, other)
                condition, a = a, condition
            return not self._of(condition) and self._both(a, b)
        kinds = ((PRODUCTS, ast.Mult), (QUOTIENTS, ast.Div), (SUMS, ast.Add))
        return any(name in names and self._combines(kind, *given) for names, kind in kinds)

    def _returns(self, value: Any) -> bool:
        """Return whether all that is returned is of a gradient, or nothing."""
        if isinstance(value, ast.Tuple):
            return all(map(self._returns, value.elts))
        if value is None or _is_nothing(value) or self._of(value):
            return True
        if not isinstance(value, ast.Name):
            return False
        made = [v for targets, v in self._assigned() if any(map(_named(value.id), targets))]
        return bool(made) and all(map(_is_nothing, made))


def _stored(target: Any) -> Iterator[str]:
    """Yield the names that hold what is stored: of `h[mask] = g`, too."""
    for node in ast.walk(target):
        at = node.value if isinstance(node, ast.Subscript) else node
        if isinstance(at, ast.Name) and (at is not node or isinstance(at.ctx, ast.Store)):
            yield at.id


def _named(name: str) -> Any:
    return lambda target: any(getattr(n, "id", "") == name for n in ast.walk(target))


def _name(function: Any) -> str:
    return str(getattr(function, "attr", getattr(function, "id", "")))


def _is_zero(node: Any) -> bool:
    if isinstance(node, ast.Call):
        return _name(node.func) == "zeros_like"
    return isinstance(node, ast.Constant) and node.value == 0 and node.value is not False


def _is_nothing(node: Any) -> bool:
    if isinstance(node, ast.Tuple):
        return all(map(_is_nothing, node.elts))
    return _is_zero(node) or (isinstance(node, ast.Constant) and node.value is None)
