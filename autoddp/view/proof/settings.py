"""The settings that a forward may go by, beside its arguments: a proof holds for these only.

`model.warm = False`, `model.bn.eval()`, `model.head = other`, a global flag: after each of them a
module may couple rows that it did not couple before.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Hashable, Mapping
from enum import Enum
from functools import partial
from hashlib import blake2b
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from autoddp.view.proof.code import called_by
from autoddp.view.proof.contents import PLAIN
from autoddp.view.proof.spoken import LARGEST, Space, Spoken, spaces_of

OURS = frozenset(vars(nn.Module())) - {"training"}  # what every module has
# these are what they are, and are compared as such
FIXED = (*PLAIN, Enum, BuiltinFunctionType, type, torch.dtype, torch.device, torch.Size)
DEEPEST = 3  # how far a value within a value is looked for


class Settings:
    """The settings of module trees. A walk over a tree is made only after something was set."""

    def __init__(self) -> None:
        self.changes = 0
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._next = 0
        self._known: weakref.WeakKeyDictionary[nn.Module, tuple[int, bytes, list[Space]]]
        self._known = weakref.WeakKeyDictionary()
        self._spoken: weakref.WeakKeyDictionary[type, Spoken] = weakref.WeakKeyDictionary()

    def note(self, module: nn.Module, name: str, value: Any) -> None:
        """Note that an attribute is set: a tensor for a tensor aside, it may steer a forward."""
        before = vars(module).get(name)
        if before is not value and (_made(before) is None or _made(before) != _made(value)):
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
        numpys = sys.modules.get("numpy")
        if numpys is not None and isinstance(value, (numpys.generic, numpys.ndarray)):
            small = value.size <= LARGEST and value.dtype != object
            return tuple(value.ravel().tolist()) if small else None
        return value if isinstance(value, FIXED) else None

    def _look(self, module: nn.Module) -> tuple[bytes, list[Space]]:
        """Digest what is set in the tree.

        Returns:
            The digest, and where values may change without a word to us.
        """
        fixed: list[Any] = []
        spaces: dict[int, Space] = {}  # one for each thing, with the names that any part reads
        for part in module.modules():
            own = [(k, v) for k, v in vars(part).items() if k not in OURS]
            fixed.append((self._number(part), tuple((k, self._value(v)) for k, v in own)))
            spoken = self._spoken_of_by(part)
            found = [space for _, v in own for space in spaces_of(v, spoken.names)]
            held = (x for x in part._parameters.values() if x is not None)
            found += [(vars(x), None) for x in held if vars(x)]
            for values, names in (*found, *spoken.spaces()):
                _, others = spaces.get(id(values), (None, ()))
                every = None if names is None or others is None else {*others, *names}
                spaces[id(values)] = values, None if every is None else tuple(sorted(every))
        digest = blake2b(repr(fixed).encode(), digest_size=16).digest()
        return digest, list(spaces.values())

    def _spoken_of_by(self, part: nn.Module) -> Spoken:
        kind = type(part)
        if kind not in self._spoken:
            self._spoken[kind] = Spoken(kind)
        return self._spoken[kind]

    def _number(self, thing: Any) -> int:
        found = self._numbers.get(thing)
        if found is None:
            self._next += 1
            found = self._numbers[thing] = self._next
        return found

    def _value(self, value: Any, depth: int = 0) -> object:
        if isinstance(value, FIXED):
            return type(value), value
        if isinstance(value, FunctionType):
            return self._number(value)
        if depth < DEEPEST and isinstance(value, (tuple, MethodType, partial)):
            parts = value if isinstance(value, tuple) else called_by(value)
            if len(parts) <= LARGEST:
                return tuple(self._value(x, depth + 1) for x in parts)
        return type(value), _made(value)


def _made(value: Any) -> bool | None:
    """Return whether a tensor comes of others by a graph, as weights that were adapted do."""
    return value.requires_grad and not value.is_leaf if isinstance(value, Tensor) else None


def _plain_of(space: Space) -> Hashable:
    values, names = space
    if names is not None:
        return tuple(values.get(n) if isinstance(values.get(n), PLAIN) else None for n in names)
    if len(values) > LARGEST:
        return None
    if not isinstance(values, Mapping):
        return tuple(v for v in values if isinstance(v, PLAIN))
    return tuple((k, v) for k, v in values.items() if isinstance(v, PLAIN))
