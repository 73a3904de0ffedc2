"""Detection of what a fetch changes: the data set, and all that it and its functions reach.

Nothing is put back, and nothing deep is copied: containers are compared by what they hold, tensors
by torch's own count of writes into them. What a C extension keeps to itself is not seen.
"""

from __future__ import annotations

import ctypes
import dis
import functools
import io
import logging
import mmap
import operator
import pickle
import random
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from multiprocessing.shared_memory import SharedMemory
from multiprocessing.sharedctypes import SynchronizedBase
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MethodType,
    MethodWrapperType,
    ModuleType,
)
from typing import Any

import torch
from torch import Tensor

from autoddp.report import is_users
from autoddp.training.sharing.code import EMPTY, called_by, content_of, functions_of
from autoddp.training.sharing.opaque import MOST as MOST_ELEMENTS
from autoddp.training.sharing.opaque import advances

SHARING = ("multiprocessing.queues", "multiprocessing.connection", "multiprocessing.managers")
SHARED = (SynchronizedBase, SharedMemory, mmap.mmap, ctypes.Array, ctypes._SimpleCData)
MOST = 300_000  # objects that are looked at; of more it cannot be told in time
ATOMS = {int, float, bool, str, bytes, complex, type(None), type(Ellipsis), range, slice}
SHARE = 0.5  # of the time of fetching, for looking
ENOUGH, SURE = 8, 16  # fetches that tell it: what all have missed is little then; clocks cost

Change = Callable[[], bool]


class Stamp:
    """The state of some objects, at one moment.

    Attributes:
        refused: Why it cannot be told whether the objects change; empty if it can.
        shared: What worker processes may change for the script to see; empty if nothing.
    """

    def __init__(self, *roots: Any) -> None:
        self.refused = self.shared = ""
        self._seen: dict[int, Any] = {}  # kept alive by this, so that ids stay theirs
        self._checks: list[tuple[str, Change]] = []
        self._todo = deque((type(root).__name__, root) for root in roots)
        while self._todo and not self.refused:
            self._look(*self._todo.popleft())
            if len(self._seen) > MOST:
                self.refused = f"it holds more than {MOST} objects"

    def moved(self) -> str:
        """Return what has changed, in words, or nothing."""
        return next((where for where, changed in self._checks if changed()), "")

    def keeps(self, x: Any) -> bool:
        """Return whether an object is mutable and was looked at."""
        return id(x) in self._seen and not isinstance(
            x, (tuple, frozenset, type, FunctionType, MethodType)
        )

    def _look(self, where: str, x: Any) -> None:
        if type(x) in ATOMS or id(x) in self._seen:
            return
        self._seen[id(x)] = x
        if isinstance(x, (list, deque, tuple, set, frozenset)):
            self._holds(where, x, list)
        elif isinstance(x, dict):
            self._dict(where, x)
        elif isinstance(x, Tensor):
            self._shared(
                where, x.device.type == "cpu" and x.layout is torch.strided and x.is_shared()
            )
            self._check(where, lambda: _version(x))
        elif isinstance(x, type):
            self._class(x)
        elif isinstance(x, FunctionType):
            self._function(x)
        elif not isinstance(x, ModuleType):
            self._object(where, x)

    def _holds(self, where: str, x: Any, listed: Callable[[Any], list[Any]]) -> None:
        before = listed(x)
        if not isinstance(x, (tuple, frozenset)):
            self._checks.append((where, lambda: not _same(before, listed(x))))
        if not set(map(type, before)) <= ATOMS:
            self._todo.extend((where, item) for item in before)

    def _dict(self, where: str, x: dict[Any, Any]) -> None:
        keys, values = list(x), list(x.values())
        self._checks.append(
            (where, lambda: not (_same(keys, list(x)) and _same(values, list(x.values()))))
        )
        self._todo.extend(
            (f"{where}.{key}", value) for key, value in x.items() if type(value) not in ATOMS
        )

    def _check(self, where: str, state: Callable[[], Any]) -> None:
        before = state()
        self._checks.append((where, lambda: bool(state() != before)))

    def _shared(self, where: str, yes: bool) -> None:
        self.shared = self.shared or (where if yes else "")

    def _object(self, where: str, x: Any) -> None:
        if isinstance(x, (BuiltinFunctionType, MethodWrapperType)):
            self._todo.append((where, x.__self__))  # a module, or the object whose method it is
            return
        if isinstance(x, logging.Logger) or any(
            x is each for each in (sys.stdout, sys.stderr, sys.stdin)
        ):
            return  # what is logged is an effect
        self._shared(where, isinstance(x, SHARED) or type(x).__module__.startswith(SHARING))
        if advances(x) or isinstance(x, io.IOBase):
            self.refused = f"{where} is a {type(x).__name__}, which advances when it is read"
            return
        state = _state(x)
        if state is not None:
            self._check(where, state)
            return
        self._todo.extend((where, part) for part in called_by(x))
        if hasattr(x, "__dict__"):
            self._dict(where, vars(x))
        for name in _slots(type(x)):
            self._check(f"{where}.{name}", lambda name=name: _told(getattr(x, name, None)))  # type: ignore[misc]
            self._todo.append((f"{where}.{name}", getattr(x, name, None)))
        self._todo.append((where, type(x)))

    def _class(self, kind: type) -> None:
        """Look at what a class's user-written bases keep, and at what their methods reach."""
        for one in kind.__mro__:
            if one.__module__ != "__main__" and not is_users(_file_of(one)):
                continue
            data = [name for name, value in vars(one).items() if not _is_code(name, value)]
            for name in data:
                self._name(f"{one.__name__}.{name}", lambda one=one: vars(one), name)  # type: ignore[misc]
            for value in vars(one).values():
                self._todo.extend((one.__name__, function) for function in functions_of(value))

    def _function(self, function: FunctionType) -> None:
        if not is_users(function.__code__.co_filename):
            return
        self._todo.extend((function.__name__, value) for value in function.__defaults__ or ())
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            self._check(name, lambda cell=cell: _told(content_of(cell)))  # type: ignore[misc]
            if content_of(cell) is not EMPTY:
                self._todo.append((name, content_of(cell)))
        space = function.__globals__
        for name in _written(function.__code__):
            self._name(name, lambda: space, name)
        for name in _read(function.__code__):
            value = space.get(name)
            if isinstance(value, ModuleType) and is_users(getattr(value, "__file__", None) or "<"):
                self._dict(name, vars(value))
            elif not (isinstance(value, type) and value.__module__ == "builtins"):
                self._todo.append((name, value))

    def _name(self, where: str, space: Callable[[], Any], name: str) -> None:
        self._check(where, lambda: _told(space().get(name)))
        self._todo.append((where, space().get(name)))


class DatasetWatch:
    """A look before and after each fetch, for at most this share of the time of fetching."""

    def __init__(self, *roots: Any, share: float | None = None) -> None:
        self._roots, self._share = roots, SHARE if share is None else share
        self._fetches = 0
        self._looked = self._fetched = self._began = 0.0
        self._slow = ""  # why looking is no use: all load then, as exactly
        self.stamp = Stamp(*roots)

    @property
    def refused(self) -> str:
        """Why it cannot be told whether a fetch changes anything, as things are now."""
        return self.stamp.refused or self._slow

    def before(self) -> None:
        """Pass over what the script has changed meanwhile, which is not the fetch's."""
        self._moved()
        self._began = time.perf_counter()

    def after(self) -> str:
        """Return what the fetch changed, in words."""
        self._fetched += time.perf_counter() - self._began
        self._fetches += 1
        moved = self._moved()
        if ENOUGH <= self._fetches <= SURE and self._looked > self._share * self._fetched:
            self._slow = "to look whether a fetch changes it takes as long as the fetch"
        return moved

    def _moved(self) -> str:
        timed = self._fetches <= SURE
        began = time.thread_time() if timed else 0.0  # a busy machine makes no look dearer
        moved = self.stamp.moved()
        if moved:
            self.stamp = Stamp(*self._roots)
        self._looked += time.thread_time() - began if timed else 0.0
        return moved


def _file_of(kind: type) -> str:
    return getattr(sys.modules.get(kind.__module__), "__file__", None) or "<built in>"


def _same(before: list[Any], now: list[Any]) -> bool:
    if len(before) != len(now):
        return False
    return all(map(operator.is_, before, now)) or all(map(_equal, before, now))


def _equal(a: Any, b: Any) -> bool:
    return a is b or (type(a) is type(b) and type(a) in ATOMS and bool(a == b))


def _told(value: Any) -> Any:
    return value if type(value) in ATOMS else id(value)


def _version(x: Tensor) -> int:
    return 0 if x.is_inference() else x._version


def _state(x: Any) -> Callable[[], Any] | None:
    """Return a function that reads the state of what has no attributes; None for others."""
    if isinstance(x, (bytearray, ctypes.Array, ctypes._SimpleCData)):
        return lambda: bytes(x)
    if isinstance(x, random.SystemRandom):
        return None
    if isinstance(x, random.Random):
        return x.getstate
    if isinstance(x, torch.Generator):
        return lambda: x.get_state().tolist()
    if isinstance(x, functools._lru_cache_wrapper):
        return lambda: None  # what depends on the arguments alone is no state
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    if isinstance(x, numpy.ndarray):
        small = x.size <= MOST_ELEMENTS and x.flags.writeable and x.dtype != object
        return (lambda: (x.shape, hash(x.tobytes()))) if small else lambda: None
    if isinstance(x, numpy.random.RandomState):
        return lambda: pickle.dumps(x.get_state())
    if isinstance(x, numpy.random.Generator):
        return lambda: pickle.dumps(x.bit_generator.state)
    return None


def _slots(kind: type) -> Iterator[str]:
    for one in kind.__mro__:
        slots = vars(one).get("__slots__", ())
        yield from (slots,) if isinstance(slots, str) else slots


def _is_code(name: str, value: Any) -> bool:
    code = (FunctionType, staticmethod, classmethod, property, type, BuiltinFunctionType)
    return name.startswith("__") or isinstance(value, code) or hasattr(type(value), "__set_name__")


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


@functools.lru_cache(maxsize=1024)
def _written(code: CodeType) -> tuple[str, ...]:
    steps = (step for each in _codes(code) for step in dis.get_instructions(each))
    return tuple(
        {step.argval for step in steps if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL")}
    )


@functools.lru_cache(maxsize=1024)
def _read(code: CodeType) -> tuple[str, ...]:
    steps = (step for each in _codes(code) for step in dis.get_instructions(each))
    return tuple({step.argval for step in steps if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")})
