"""Slots: attributes of modules, classes and C types that hold patched functions."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from autoddp.errors import PatchTargetMissing

ABSENT = object()


def find(target: str, module: ModuleType, optional: bool = False) -> tuple[Any, str, Any]:
    """Return the owner of `target`, the name of its attribute, and the value.

    Raises:
        PatchTargetMissing: The target does not exist; if it is optional, the value is ABSENT.
    """
    *path, name = target.partition(":")[2].split(".")
    owner: Any = module
    for part in path:
        owner = getattr(owner, part, ABSENT)
    value = ABSENT if owner is ABSENT else getattr(owner, name, ABSENT)
    if value is ABSENT and not optional:
        version = getattr(sys.modules.get(module.__name__.partition(".")[0]), "__version__", "?")
        raise PatchTargetMissing(
            f"{target} does not exist in {module.__name__.partition('.')[0]} {version}; "
            "this version of autoddp does not support it"
        )
    return owner, name, value


def assign(owner: Any, name: str, value: Any) -> None:
    """Set an attribute, also of a C type, for which `setattr` raises."""
    try:
        setattr(owner, name, value)
    except TypeError:
        slots: Sequence[Any] = gc.get_referents(vars(owner))  # dict behind the mappingproxy
        slots[0][name] = value
        # invalidate cached attribute lookups
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(owner))


def restore(owner: Any, name: str, slot: Any, replacement: Any) -> None:
    """Restore `slot`, unless the attribute no longer holds the replacement."""
    if vars(owner).get(name) is not replacement:
        return
    if slot is not ABSENT:
        assign(owner, name, slot)
    else:
        delattr(owner, name)
