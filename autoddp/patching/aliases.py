"""The names by which libraries that were imported before us hold functions of others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

_FUNCTIONS = (BuiltinFunctionType, FunctionType)


class Aliases:
    """The names of `modules`, and of the classes that they define, for functions of other modules.

    Such are `from os import replace` in a module, `_open = staticmethod(open)` in a class. Modules
    are looked through once, since that takes some hundredths of a second.
    """

    def __init__(self, modules: Iterable[ModuleType]) -> None:
        self._slots: dict[int, list[tuple[Any, str]]] = {}
        for module in modules:
            for name, value in list(vars(module).items()):
                if type(value) in _FUNCTIONS and value.__module__ != module.__name__:
                    self._slots.setdefault(id(value), []).append((module, name))
                elif issubclass(type(value), type) and value.__module__ == module.__name__:
                    self._add_class(value)

    def _add_class(self, owner: type) -> None:
        for name, value in list(vars(owner).items()):
            if type(value) is staticmethod:
                self._slots.setdefault(id(value.__func__), []).append((owner, name))
            # a built-in function binds no instance; a Python function would
            elif type(value) is BuiltinFunctionType:
                self._slots.setdefault(id(value), []).append((owner, name))

    def replace(self, current: Any, replacement: Any) -> Iterator[tuple[Any, str, Any]]:
        """Yield owner, name and new value of each slot of `current`, now `replacement`'s."""
        slots = self._slots.pop(id(current), [])
        self._slots[id(replacement)] = slots
        for owner, name in slots:
            yield (
                owner,
                name,
                replacement if isinstance(owner, ModuleType) else staticmethod(replacement),
            )
