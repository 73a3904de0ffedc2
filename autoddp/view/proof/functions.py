"""Whether the backward of an autograd function treats rows one by one, as its source tells.

A proof sees a forward. A function's backward is code of the script's, or of a library's, that runs
later: it may add up over rows, or draw. Only what is certain to go by elements, and to be linear in
the gradient, is taken for it: a rank's gradient is that of its rows' own mean.
"""

from __future__ import annotations

import ast
import inspect
from functools import cache
from types import FunctionType
from typing import Any

from autoddp.view.proof.code import names_of
from autoddp.view.proof.linear import is_linear
from autoddp.view.proof.source import nodes_of

# attributes of tensors and names of torch and of Python that go by elements, or ask for no values
BY_ELEMENT = {
    *("saved_tensors", "needs_input_grad", "clone", "detach", "contiguous", "neg", "exp", "log"),
    *("sigmoid", "tanh", "relu", "abs", "sign", "clamp", "clamp_", "clip", "pow", "sqrt", "rsqrt"),
    *("square", "sin", "cos", "erf", "reciprocal", "mul", "mul_", "div", "div_", "add", "add_"),
    *("sub", "sub_", "neg_", "ge", "gt", "le", "lt", "eq", "ne", "where", "masked_fill"),
    *("masked_fill_", "logical_and", "logical_or", "logical_not", "zeros_like", "ones_like"),
    *("float", "double", "half", "to", "type_as", "bool", "dtype", "device", "torch", "softplus"),
    *("logsigmoid", "functional", "nn", "F", "view_as", "maximum", "minimum", "heaviside", "pi"),
    *("math", "isinstance", "tuple", "Tensor", "expm1"),
    *("log1p", "sigmoid_", "exp_", "is_complex", "conj", "real", "imag", "round", "floor", "ceil"),
    *("fill_", "zero_", "requires_grad", "is_floating_point", "hardtanh", "atan", "cosh", "sinh"),
}
CONDITIONS = {"ge", "gt", "le", "lt", "eq", "ne", "logical_and", "logical_or", "logical_not"}
MIXING = (ast.MatMult, ast.For, ast.comprehension, ast.Lambda, ast.Yield, ast.YieldFrom, ast.While)
TORCHS = ("torch.", "autoddp.")
OF_SCRIPTS = "torch._library."  # the functions of operators that scripts have registered


@cache
def by_rows(kind: Any) -> bool:
    """Return whether a function's backward is certain to compute each row by itself.

    Torch's own functions are taken to do so: what they compute is what their forward does.
    """
    module = str(kind.__module__)
    if module.startswith(TORCHS) and not module.startswith(OF_SCRIPTS):
        return True
    backward, forward = (_written(kind, n) for n in ("backward", "forward"))
    context = getattr(kind, "setup_context", None)
    if not isinstance(backward, FunctionType) or str(backward.__module__).startswith(TORCHS):
        return False  # it has another name, as `vjp`, or is written in C
    makers = [each.__code__ for each in (forward, context) if isinstance(each, FunctionType)]
    kept = {name for code in makers for name in names_of(code)}
    found = nodes_of(backward.__code__)
    if len(found) != 1 or not is_linear(found[0]):
        return False
    return all(_goes_by_element(n, kept, backward) for n in ast.walk(found[0]))


def _written(kind: Any, name: str) -> Any:
    """Return a function as its class has it, past what decorates it."""
    found = getattr(kind, name, None)
    return inspect.unwrap(found) if callable(found) else None


def _goes_by_element(node: Any, kept: set[str], function: FunctionType) -> bool:
    """Return whether this part of the source can mix no rows; `kept` are names of the forward's."""
    if isinstance(node, ast.Subscript):
        return _picks_no_row(node)
    if isinstance(node, ast.Attribute):
        of_context = getattr(node.value, "id", "") == function.__code__.co_varnames[0]
        return node.attr in BY_ELEMENT or (of_context and node.attr in kept)
    if isinstance(node, ast.Call):
        return getattr(node.func, "attr", getattr(node.func, "id", "")) in BY_ELEMENT
    return not isinstance(node, MIXING)


def _picks_no_row(node: ast.Subscript) -> bool:
    """Return whether a subscript is of a tuple of saved ones, or picks elements by a condition."""
    of = getattr(node.value, "attr", "")
    return of in ("saved_tensors", "needs_input_grad") or _is_condition(node.slice)


def _is_condition(node: Any) -> bool:
    """Return whether an expression is a mask of elements; a number would be a row's."""
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Invert)
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, (ast.BitAnd, ast.BitOr, ast.BitXor))
    if isinstance(node, ast.Call):
        return getattr(node.func, "attr", "") in CONDITIONS
    return isinstance(node, ast.Compare)
