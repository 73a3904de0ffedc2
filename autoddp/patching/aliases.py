"""The names under which already imported modules hold functions of other modules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import wrapt

from autoddp.patching.call import is_ours

_FUNCTIONS = (BuiltinFunctionType, FunctionType)


class Aliases:
    """The names in `modules` of functions of other modules, as after `from os import replace`.

    With `libraries`, only functions are searched, for speed, but also in classes, as in
    `_open = staticmethod(open)`. All modules are searched once, in about 0.1 s.
    """

    def __init__(self, modules: Iterable[ModuleType], libraries: bool = False) -> None:
        self._slots: dict[int, list[tuple[Any, str]]] = {}
        for module in modules:
            for name, value in list(vars(module).items()):
                kind, of_class = type(value), issubclass(type(value), type)
                if (kind in _FUNCTIONS or of_class) and value.__module__ == module.__name__:
                    if libraries and of_class:
                        self._add_class(value)
                elif kind in _FUNCTIONS or (callable(value) and not libraries):
                    patched = kind is wrapt.FunctionWrapper and is_ours(value)
                    self._add(module, name, value.__wrapped__ if patched else value)

    def _add(self, owner: Any, name: str, value: Any) -> None:
        self._slots.setdefault(id(value), []).append((owner, name))

    def _add_class(self, owner: type) -> None:
        for name, value in list(vars(owner).items()):
            if type(value) is staticmethod:
                self._add(owner, name, value.__func__)
            # unlike a Python function, a built-in one is not bound as a method
            elif type(value) is BuiltinFunctionType:
                self._add(owner, name, value)

    def replace(self, current: Any, replacement: Any) -> Iterator[tuple[Any, str, Any]]:
        """Yield owner, name and new value of each slot that holds `current`."""
        slots = self._slots.pop(id(current), [])
        self._slots[id(replacement)] = slots
        for owner, name in slots:
            yield (
                owner,
                name,
                replacement if isinstance(owner, ModuleType) else staticmethod(replacement),
            )
