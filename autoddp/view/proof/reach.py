"""The values that a call is given: the same lists, dicts and objects go in and come out.

They belong to the call, so what holds other values is never copied. It is filled in place for the
length of the call, and put back after it: what the callee left there stays. Only tuples, which
nobody can write into, are built anew.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections import OrderedDict, UserDict, UserList, deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from enum import Enum
from functools import cache
from types import FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

from torch import Tensor, nn

from autoddp.view.proof.counts import NotedSize

DEPTH = 8
MOST = 4096  # values that are looked at; what reaches more is the world, not an argument
# hashed by value
SINGLE = frozenset({int, NotedSize, float, bool, str, bytes, complex, type(None)})
OPAQUE = (nn.Module, type, FunctionType, MethodType, ModuleType, Enum)
# classes of Python's own that hold whatever one likes
HOLDERS = (SimpleNamespace, Namespace, UserDict, UserList)
# packages whose objects are looked at by nobody
CLOSED = frozenset(sys.stdlib_module_names) | {"torch", "numpy"}
GONE = object()
IN_C = ("torch.return_types",)  # classes of tuples that are made by themselves alone

Node = Any  # the number of a leaf, or what holds others: (the thing, the nodes of a tuple's items)


class Reach:
    """The leaves of values, in order, and what holds them.

    Attributes:
        names: The names of the last values, which are given by keyword.
        leaves: Tensors, and whatever else holds nothing that could be put back.
        layout: Equal for values that are built alike.
        inside: The numbers of leaves that lie in an object, which a class of its own takes apart.
        spaces: Whatever can be written into, with the nodes of what it holds.
        holders: The lists, dicts and objects that these belong to.
        refused: Why it cannot be filled; empty if it can.
    """

    __slots__ = (
        "_before", "_nodes", "_placed", "_seen",
        "holders", "inside", "layout", "leaves", "names", "refused", "spaces",
    )  # fmt: skip

    def __init__(self, values: tuple[Any, ...], names: tuple[str, ...] = ()) -> None:
        self.leaves: list[Any] = []
        self.names = names
        self.inside: set[int] = set()
        self.spaces: list[tuple[Any, list[tuple[Any, Node]]]] = []
        self.holders: list[Any] = []
        self.refused = ""
        self._seen: dict[int, int] = {}
        self._before: list[Any] = []
        self._placed: list[tuple[Any, Any, Any, Any]] = []
        built: list[Hashable] = [len(values), names]
        self._nodes = [self._look(value, built, 0, False) for value in values]
        self.layout: Hashable = tuple(built)

    def _look(self, value: Any, built: list[Hashable], depth: int, inside: bool) -> Node:
        kind: Any = type(value)
        if kind in SINGLE or isinstance(value, (Tensor, *OPAQUE)):
            return self._leaf(value, built, inside)
        if id(value) in self._seen:
            built.append(("again", self._seen[id(value)]))
            return value, None
        if is_tuple(kind):
            items = list(tuple.__iter__(value))
            built.append((kind, len(items)))
            if getattr(value, "__dict__", None):
                self.refused = "a tuple that it is given, or gives, has attributes besides"
            return value, [self._look(each, built, depth + 1, inside) for each in items]
        spaces = list(spaces_of(value))
        if not spaces:
            return self._leaf(value, built, inside)
        if depth > DEPTH or len(self._seen) + len(self.leaves) > MOST:
            self.refused = "what it is given reaches too far to be put back"
            return value, None
        self._seen[id(value)] = len(self._seen)
        self.holders.append(value)
        for space in spaces:
            keys = tuple(keys_of(space))
            built.append((kind, type(space), *(k if type(k) in SINGLE else type(k) for k in keys)))
            own = inside or space is not value
            nodes = [(key, self._look(item(space, key), built, depth + 1, own)) for key in keys]
            self.spaces.append((space, nodes))
            self._before.append(content(space))
        return value, None

    def _leaf(self, value: Any, built: list[Hashable], inside: bool) -> int:
        built.append(isinstance(value, Tensor))
        if inside:
            self.inside.add(len(self.leaves))
        self.leaves.append(value)
        return len(self.leaves) - 1

    def fill(self, made: list[Any]) -> list[Any]:
        """Return the values with `made` for the leaves; `put_back` or `restore` has to follow."""
        for space, nodes in self.spaces:
            for key, node in nodes:
                new, old = _made(node, made), item(space, key)
                if new is not old:
                    put(space, key, new)
                    self._placed.append((space, key, new, old))
        return [_made(node, made) for node in self._nodes]

    def put_back(self) -> None:
        """Put back what was there before, wherever what was filled in still is."""
        for space, key, new, old in self._placed:
            if item(space, key) is new:
                put(space, key, old)
        self._placed.clear()

    def restore(self) -> None:
        """Give whatever can be written into what it held, and nothing else."""
        for (space, _), before in zip(self.spaces, self._before, strict=True):
            set_content(space, before)
        self._placed.clear()

    def after(self, out: Any) -> Reach:
        """Return what the call returned, `out`, and what it left in what it was given."""
        return Reach((out, *self.holders))

    @contextmanager
    def filled(self, made: list[Any]) -> Iterator[list[Any]]:
        """Put `made` for the leaves in here; afterwards these are back, wherever they are held."""
        values = self.fill(made)
        try:
            yield values
        finally:
            if self._placed:
                self.put_back()
                after = self.after(None)
                known = {id(m): x for m, x in zip(made, self.leaves, strict=True)}
                after.fill([known.get(id(x), x) for x in after.leaves])

    def call(self, run: Callable[..., Any], values: list[Any]) -> Any:
        """Call `run` with `values`, by position and name as those that were looked at."""
        names = self.names
        if not names:
            return run(*values)
        count = len(values) - len(names)
        return run(*values[:count], **dict(zip(names, values[count:], strict=True)))


def reach_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Reach:
    """Return the reach of the arguments of a call."""
    return Reach((*args, *kwargs.values()), tuple(kwargs))


def _made(node: Node, made: list[Any]) -> Any:
    if type(node) is int:
        return made[node]
    thing, nodes = node
    if nodes is None:
        return thing
    items = [_made(n, made) for n in nodes]
    if all(a is b for a, b in zip(items, tuple.__iter__(thing), strict=True)):
        return thing
    kind: Any = type(thing)
    # past what a class of the script's makes of its arguments
    return kind(items) if kind.__module__ in IN_C else tuple.__new__(kind, items)


@cache
def is_tuple(kind: Any) -> bool:
    """Return whether a class is tuple, or one that can be built of its items alone."""
    if not issubclass(kind, tuple) or kind.__module__ in IN_C:
        return issubclass(kind, tuple)
    try:
        tuple.__new__(kind, ())
    except TypeError:  # written in C, as a torch.Size or what os.stat returns: of numbers
        return False
    return True


# ---- what can be written into


class Slots:
    """The attributes of an object that has no `__dict__` for them."""

    def __init__(self, owner: Any, names: tuple[str, ...]) -> None:
        self.owner, self.names = owner, names

    def __getitem__(self, name: str) -> Any:
        return getattr(self.owner, name, GONE)

    def put(self, name: str, value: Any) -> None:
        """Set or delete an attribute, past whatever a frozen class says to that."""
        if value is not GONE:
            object.__setattr__(self.owner, name, value)
        elif hasattr(self.owner, name):
            object.__delattr__(self.owner, name)


def spaces_of(value: Any) -> Iterator[Any]:
    """Yield a list or dict itself, and the attributes of an object."""
    if isinstance(value, (list, deque, dict)):
        yield value
    kind = type(value)
    if kind.__module__.partition(".")[0] in CLOSED and not isinstance(value, HOLDERS):
        return
    own = getattr(value, "__dict__", None)
    if type(own) is dict:
        yield own
    named = (vars(one).get("__slots__", ()) for one in kind.__mro__)
    names = [n for some in named for n in ((some,) if isinstance(some, str) else some)]
    names = [n for n in names if not n.startswith("__") and hasattr(kind, n)]
    if names:
        yield Slots(value, tuple(names))


def keys_of(space: Any) -> Any:
    """Return the keys under which `space` holds something."""
    if isinstance(space, dict):
        return base(space).keys(space)
    return space.names if isinstance(space, Slots) else range(len(space))


def item(space: Any, key: Any) -> Any:
    """Return what `space` holds under `key` now, GONE if nothing."""
    if isinstance(space, (list, deque)):
        return space[key] if key < len(space) else GONE
    return dict.get(space, key, GONE) if isinstance(space, dict) else space[key]


def put(space: Any, key: Any, value: Any) -> None:
    """Write into `space`, past what a class of its own makes of that."""
    if isinstance(space, Slots):
        space.put(key, value)
    else:
        base(space).__setitem__(space, key, value)


def base(space: Any) -> Any:
    """Return Python's own class, which keeps what `space` holds."""
    return next(kind for kind in (OrderedDict, dict, list, deque) if isinstance(space, kind))


def content(space: Any) -> Any:
    """Return what `space` holds now, to be set again."""
    if isinstance(space, Slots):
        return [space[name] for name in space.names]
    return list(base(space).items(space)) if isinstance(space, dict) else list(space)


def set_content(space: Any, before: Any) -> None:
    """Set again what `content` returned."""
    if isinstance(space, Slots):
        for name, value in zip(space.names, before, strict=True):
            space.put(name, value)
        return
    kind = base(space)
    kind.clear(space)
    if not isinstance(space, dict):
        kind.extend(space, before)
        return
    for key, value in before:
        kind.__setitem__(space, key, value)
