"""Containers of a batch among the arguments: dicts, lists, tuples, dataclasses and TensorDicts."""

from __future__ import annotations

import copy
import sys
from collections import OrderedDict, UserDict
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

MANY = 1000  # items of a container that is not looked into
ABSENT = object()
PLAIN = {int, float, bool, str, type(None), torch.dtype, torch.device}
NUMBERS = {int, float, bool, str, bytes}  # a list of them holds no batch


def leaves_of(values: Any, seen: set[int] | None = None) -> Iterator[Any]:
    """Yield these values, in place of a container what it holds."""
    seen = set() if seen is None else seen
    for x in values:
        if not is_container(x):
            yield x
        elif id(x) not in seen:
            seen.add(id(x))
            yield from leaves_of(_parts(x).values(), seen)


def is_container(x: Any) -> bool:
    """Return whether a value is a container that may hold a batch."""
    if isinstance(x, Tensor):  # in almost all calls
        return False
    kind = type(x)
    if kind in (list, tuple) or _is_namedtuple(kind):  # no `Size`, nor a packed sequence
        return 0 < len(x) <= MANY and type(x[0]) not in NUMBERS
    return issubclass(kind, (dict, UserDict)) or is_dataclass(kind) or is_tensordict(x)


def is_tensordict(x: Any) -> bool:
    """Return whether a value is a `TensorDict` that may be written into."""
    library = sys.modules.get("tensordict")
    return library is not None and type(x) is library.TensorDict and not x.is_locked


class Copies:
    """Copies of containers, in which other tensors stand; the script's own stay as they are.

    What the script writes into a copy is written into its own container by `write_back`.
    """

    def __init__(self, replace: Callable[[Any], Any]) -> None:
        self.replace = replace
        self._made: dict[int, tuple[Any, Any, dict[Any, Any]]] = {}  # by the container
        self._back: dict[int, tuple[Any, Any]] = {}  # by the id of what stands for something

    def of(self, x: Any) -> Any:
        """Return what stands for `x`: another tensor, a copy that holds one, or itself."""
        if not is_container(x):
            new = self.replace(x)
        elif id(x) in self._made:
            return self._made[id(x)][1]
        else:
            self._made[id(x)] = (x, x, {})  # it may hold itself
            new = self._copied(x)
        if new is not x:
            self._back[id(new)] = (new, x)
        return new

    def _copied(self, x: Any) -> Any:
        before = _parts(x)
        after = {key: self.of(value) for key, value in before.items()}
        if all(after[key] is value for key, value in before.items()):
            return x
        if isinstance(x, tuple):
            values = after.values()
            made = tuple(values) if type(x) is tuple else type(x)._make(values)  # type: ignore[attr-defined]
            self._made[id(x)] = (x, made, after)
            return made
        try:
            new = copy.copy(x)
        except Exception:  # its class refuses a copy: what it holds stays whole
            return x
        for key, value in after.items():
            _put(new, key, value)
        self._made[id(x)] = (x, new, after)
        return new

    def write_back(self) -> None:
        """Write into the script's containers what was written into their copies."""
        for own, new, before in self._made.values():
            if new is own or isinstance(own, tuple):
                continue
            after = _parts(new)
            if isinstance(own, list) and [*after] != [*before]:
                own[:] = map(self.original, new)
                continue
            for key, value in after.items():
                if before.get(key, ABSENT) is not value:
                    _put(own, key, self.original(value))
            for key in before.keys() - after.keys():
                _remove(own, key)

    def original(self, x: Any) -> Any:
        """Return the script's own for what stands for it; anything else as it is."""
        new, own = self._back.get(id(x), (None, None))
        return own if new is x and new is not None else x


def _parts(x: Any) -> dict[Any, Any]:
    """Return what a container holds, by index, or by whether it is an attribute, and the name."""
    if isinstance(x, (list, tuple)):
        return dict(enumerate(x))
    found = (
        {(False, key): value for key, value in x.items()}
        if isinstance(x, dict) or is_tensordict(x)
        else {}
    )
    names = ["data"] if isinstance(x, UserDict) else []
    names += [field.name for field in fields(x)] if is_dataclass(x) else []
    held = ((name, getattr(x, name, ABSENT)) for name in names)
    return found | {(True, name): value for name, value in held if value is not ABSENT}


def _put(x: Any, key: Any, value: Any) -> None:
    """Put a part into a container, also where its class lets nobody do so."""
    if isinstance(x, list):
        list.__setitem__(x, key, value)
    elif key[0]:
        object.__setattr__(x, key[1], value)
    else:
        _mapping(x).__setitem__(x, key[1], value)


def _remove(x: Any, key: Any) -> None:
    if key[0]:
        object.__delattr__(x, key[1])
    else:
        _mapping(x).__delitem__(x, key[1])


def _mapping(x: Any) -> Any:
    """Return the class whose methods write into a mapping, and do nothing else."""
    if not isinstance(x, dict):
        return type(x)
    return OrderedDict if isinstance(x, OrderedDict) else dict


def _is_namedtuple(kind: type) -> bool:
    return kind.__bases__ == (tuple,) and hasattr(kind, "_make")


def is_shape(x: Any) -> bool:
    """Return whether `x` is a `torch.Size`, a leaf of trees: `Tensor.new` reads a tuple as data."""
    return isinstance(x, torch.Size)


def leaves_in(args: Any, kwargs: dict[str, Any]) -> list[Any]:
    """Return the arguments of a call, flattened as a pytree if any is a container."""
    given = [*args, *kwargs.values()]
    flat = all(kind in PLAIN or issubclass(kind, Tensor) for kind in {*map(type, given)})
    return given if flat else tree_leaves(given)
