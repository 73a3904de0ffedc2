"""What the user's code can get at: the names that it speaks of, and where functions are kept."""

from __future__ import annotations

from collections.abc import Iterator
from types import CellType, CodeType, FunctionType
from typing import Any

EMPTY = object()  # a cell that nothing was put into yet


def names_of(code: CodeType) -> Iterator[str]:
    """The global names and attributes that a function, and what is defined in it, speaks of."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_of(constant)


def functions_of(method: Any) -> list[Any]:
    """The functions of a method, a property, a static or a class method."""
    if isinstance(method, property):
        return [part for part in (method.fget, method.fset) if isinstance(part, FunctionType)]
    method = getattr(method, "__func__", method)
    return [method] if isinstance(method, FunctionType) else []


def content_of(cell: CellType) -> Any:
    """Of a variable of the function around one."""
    try:
        return cell.cell_contents
    except ValueError:
        return EMPTY
