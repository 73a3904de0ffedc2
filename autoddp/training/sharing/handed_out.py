"""The expressions of which one is the value of another, a part of it, or shows its memory."""

from __future__ import annotations

import ast
from collections.abc import Collection
from typing import Any

# what gives a part of what it is called on, or of its first argument, or shows its memory
HANDS_OUT = {
    *("get", "setdefault", "values", "items", "__getitem__", "getattr", "vars"),
    *("from_numpy", "contiguous", "numpy", "detach", "view", "view_as", "reshape", "reshape_as"),
    *("ravel", "flatten", "squeeze", "unsqueeze", "expand_dims", "transpose", "permute", "t"),
    *("swapaxes", "moveaxis", "movedim", "narrow", "select", "unbind", "diagonal", "expand"),
    *("as_strided", "unfold", "cpu"),
}
# what shows its memory unless it is told of another type, which as a rule the data has not
CONVERTS = {"asarray", "asanyarray", "as_tensor", "ascontiguousarray"}
# what shows its memory where it is told of the type that the data has, by an argument or its name
TOLD = {*CONVERTS, "to", "type", "type_as", "require"}
NAMED = {
    **{"float": "float32", "double": "float64", "half": "float16", "bfloat16": "bfloat16"},
    **{"long": "int64", "int": "int32", "short": "int16", "char": "int8", "byte": "uint8"},
    "bool": "bool",
}
COPIES = {"astype", "array"}  # unless `copy` says otherwise


def handed_out(node: Any, types: Collection[str] = ()) -> list[Any]:
    """Return the expressions of which one is the value of `node`, or holds it.

    Args:
        node: An expression.
        types: The data types, such as "float32", of data to which a conversion may do nothing.
    """
    if isinstance(node, (ast.Tuple, ast.List)):
        return node.elts
    if isinstance(node, ast.BoolOp):
        return node.values
    if isinstance(node, ast.IfExp):
        return [node.body, node.orelse]
    if isinstance(node, ast.Call) and _shows(node, types):
        return [*node.args[:1], *([node.func.value] if hasattr(node.func, "value") else [])]
    return []


def called(call: Any) -> str:
    """Return the name by which a function is called."""
    return _last_name(call.func)


def _shows(call: ast.Call, types: Collection[str]) -> bool:
    """Return whether a call gives a part of something, or shows its memory."""
    name, plain = called(call), len(call.args) == 1 and not call.keywords
    if name in HANDS_OUT or (name in CONVERTS and plain):
        return True
    if not types:
        return False
    if name in NAMED:
        return isinstance(call.func, ast.Attribute) and NAMED[name] in types
    told = name in TOLD or (name in COPIES and any(each.arg == "copy" for each in call.keywords))
    words = {_last_name(x) for x in (*call.args, *(each.value for each in call.keywords))}
    named = {NAMED.get(word, word) for word in words} & set(NAMED.values())
    return told and (not named or not named.isdisjoint(types))


def _last_name(node: Any) -> str:
    return str(getattr(node, "attr", getattr(node, "id", "")))
