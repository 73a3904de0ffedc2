"""The names by which modules that were imported before hold functions of other modules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import wrapt

from autoddp.patching.call import is_ours

_FUNCTIONS = (BuiltinFunctionType, FunctionType)


class Aliases:
    """The names in `modules` for functions of other modules, as `from os import replace` makes.

    With `classes`, also those in classes that the modules define: `_open = staticmethod(open)`.
    Modules are searched once, which takes some hundredths of a second.
    """

    def __init__(self, modules: Iterable[ModuleType], classes: bool = False) -> None:
        self._slots: dict[int, list[tuple[Any, str]]] = {}
        for module in modules:
            for name, value in list(vars(module).items()):
                kind, of_class = type(value), issubclass(type(value), type)
                if kind is wrapt.FunctionWrapper:
                    if is_ours(value):  # of a former installation
                        self._add(module, name, value.__wrapped__)
                elif (kind in _FUNCTIONS or of_class) and value.__module__ == module.__name__:
                    if classes and of_class:
                        self._add_class(value)
                elif callable(value):
                    self._add(module, name, value)

    def _add(self, owner: Any, name: str, value: Any) -> None:
        self._slots.setdefault(id(value), []).append((owner, name))

    def _add_class(self, owner: type) -> None:
        for name, value in list(vars(owner).items()):
            if type(value) is staticmethod:
                self._add(owner, name, value.__func__)
            # a built-in function binds no instance; a Python function would
            elif type(value) is BuiltinFunctionType:
                self._add(owner, name, value)

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
