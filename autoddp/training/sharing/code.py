"""The reach of the user's code: the names that it speaks of, and where functions are kept."""

from __future__ import annotations

import argparse
import functools
import sys
import threading
from collections import UserDict, UserList
from collections.abc import Iterator, Mapping
from queue import Queue
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any

from torch import nn

from autoddp.report import is_users

CODE = (ModuleType, type, FunctionType, BuiltinFunctionType, staticmethod, classmethod, property)
# these hold what whoever likes puts there
NAMESPACES = (SimpleNamespace, argparse.Namespace, UserDict, UserList, Queue, threading.local)
EMPTY = object()  # a cell that nothing was put into yet


def names_of(code: CodeType) -> Iterator[str]:
    """Yield the global names and attributes that a function, and what it defines, speaks of."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_of(constant)


def functions_of(method: Any) -> list[Any]:
    """Return the functions of a method, a property, a static or a class method."""
    if isinstance(method, property):
        return [part for part in (method.fget, method.fset) if isinstance(part, FunctionType)]
    method = getattr(method, "__func__", method)
    return [method] if isinstance(method, FunctionType) else []


def called_by(value: Any) -> tuple[Any, ...]:
    """Return what a bound method or an object of `functools` calls, and with what; else nothing."""
    if isinstance(value, MethodType):
        return value.__func__, value.__self__
    if isinstance(value, (functools.partial, functools.partialmethod)):
        return value.func, *value.args, *value.keywords.values()
    if isinstance(value, functools.cached_property):
        return (value.func,)
    return (value.__wrapped__,) if isinstance(value, functools._lru_cache_wrapper) else ()


def content_of(cell: CellType) -> Any:
    """Return what a variable of the function around one holds, EMPTY if nothing yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return EMPTY


def may_hold_state(value: Any) -> bool:
    """Return whether `value` is the user's, a data set of torch's, or a holder of attributes."""
    if type(value).__module__.startswith("torch.utils.data"):
        return True
    return is_users_class(type(value)) or type(value) in NAMESPACES


def is_users_class(kind: type) -> bool:
    """Return whether a class is defined in the user's own files."""
    return is_users(getattr(sys.modules.get(kind.__module__), "__file__", None) or "<")


def forwards_of(module: nn.Module) -> Iterator[FunctionType]:
    """Yield every forward of this tree."""
    for kind in {type(part) for part in module.modules()}:
        forward = getattr(kind, "forward", None)  # a scripted module's class has none
        if isinstance(forward, FunctionType):
            yield forward


def data_in(space: Mapping[str, Any]) -> dict[str, Any]:
    """Return the names in a file or a class that stand for values, not for code."""
    return {k: v for k, v in space.items() if not k.startswith("__") and not isinstance(v, CODE)}
