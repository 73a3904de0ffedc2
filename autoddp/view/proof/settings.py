"""The settings that a forward may go by, beside its arguments: a proof holds for these only.

`model.warm = False`, `model.bn.eval()`, `model.head = other`, a global flag: after each of them a
module may couple rows that it did not couple before.
"""

from __future__ import annotations

import dis
import weakref
from argparse import Namespace
from collections.abc import Hashable, Iterator
from enum import Enum
from hashlib import blake2b
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from autoddp.report import is_users
from autoddp.view.proof.snapshot import PLAIN

OURS = frozenset(vars(nn.Module())) - {"training"}  # what every module has
# these are what they are, and are compared as such
FIXED = (*PLAIN, Enum, BuiltinFunctionType, type, torch.dtype, torch.device, torch.Size)
LARGEST = 64  # entries; what holds more is data, not settings
Space = tuple[dict[str, Any], tuple[str, ...] | None]  # names and values; which of them, or all


class Settings:
    """The settings of module trees. A walk over a tree is made only after something was set."""

    def __init__(self) -> None:
        self.changes = 0
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._next = 0
        self._known: weakref.WeakKeyDictionary[nn.Module, tuple[int, bytes, list[Space]]]
        self._known = weakref.WeakKeyDictionary()
        self._names: weakref.WeakKeyDictionary[type, tuple[str, ...]] = weakref.WeakKeyDictionary()

    def note(self, module: nn.Module, name: str, value: Any) -> None:
        """Note that an attribute is set: a tensor for a tensor aside, it may steer a forward."""
        before = vars(module).get(name)
        if before is not value and not (isinstance(before, Tensor) and isinstance(value, Tensor)):
            self.changes += 1

    def of(self, module: nn.Module) -> Hashable:
        """Return a tree's settings: equal for two calls if nothing was set to another value."""
        known = self._known.get(module)
        if known is None or known[0] != self.changes:
            known = self._known[module] = (self.changes, *self._look(module))
        _, fixed, spaces = known
        return (fixed, *map(_plain_of, spaces)) if spaces else fixed

    def of_argument(self, value: Any) -> Hashable:
        """Return what a proof holds for, of an argument that is no batch: None for any object."""
        if isinstance(value, nn.Module):
            return self.of(value)
        if isinstance(value, (FunctionType, MethodType)):
            # a lambda is another object at each call, and the same code
            return getattr(value, "__func__", value).__code__
        return value if isinstance(value, FIXED) else None

    def _look(self, module: nn.Module) -> tuple[bytes, list[Space]]:
        """Digest what is set in the tree.

        Returns:
            The digest, and where values may change without a word to us.
        """
        fixed: list[Any] = []
        spaces: list[Space] = []
        for part in module.modules():
            own = [(k, v) for k, v in vars(part).items() if k not in OURS]
            fixed.append((self._number(part), tuple((k, self._value(v)) for k, v in own)))
            for _, value in own:
                space = _space(value)
                if space is not None:
                    spaces.append((space, None))
            spaces += self._globals(part)
        return blake2b(repr(fixed).encode(), digest_size=16).digest(), spaces

    def _number(self, thing: Any) -> int:
        found = self._numbers.get(thing)
        if found is None:
            self._next += 1
            found = self._numbers[thing] = self._next
        return found

    def _value(self, value: Any) -> object:
        if isinstance(value, FIXED):
            return type(value), value
        return self._number(value) if isinstance(value, FunctionType) else type(value)

    def _globals(self, part: nn.Module) -> Iterator[Space]:
        """Yield the plain names and the namespaces of a part's file that its methods read."""
        kind = type(part)
        forward = getattr(kind, "forward", None)
        if not isinstance(forward, FunctionType) or not is_users(forward.__code__.co_filename):
            return
        if kind not in self._names:
            methods = [f.__code__ for f in vars(kind).values() if isinstance(f, FunctionType)]
            self._names[kind] = tuple(dict.fromkeys(n for m in methods for n in _read(m)))
        space = forward.__globals__
        plain = tuple(n for n in self._names[kind] if n in space and isinstance(space[n], PLAIN))
        if plain:
            yield space, plain
        for name in self._names[kind]:
            found = _space(space.get(name))
            if found is not None:
                yield found, None


def _read(code: CodeType) -> Iterator[str]:
    """Yield the global names that a function reads, and functions written inside it."""
    for step in dis.get_instructions(code):
        if step.opname == "LOAD_GLOBAL":
            yield step.argval
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _read(inner)


def _space(value: Any) -> dict[str, Any] | None:
    """Return the names and values of a dict, or of an object made to hold settings, else None."""
    if type(value) is dict:
        return value
    made = isinstance(value, (Namespace, SimpleNamespace)) or hasattr(
        type(value), "__dataclass_fields__"
    )
    return (
        vars(value) if made and hasattr(value, "__dict__") and not isinstance(value, type) else None
    )


def _plain_of(space: Space) -> Hashable:
    values, names = space
    if names is not None:
        return tuple(values.get(n) if isinstance(values.get(n), PLAIN) else None for n in names)
    if len(values) > LARGEST:
        return None
    return tuple((k, v) for k, v in values.items() if isinstance(v, PLAIN))
