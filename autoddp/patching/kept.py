"""A cached property without a lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class KeptProperty(Generic[Value]):
    """A cached property, like `functools.cached_property` of Python 3.12 and later.

    That of 3.11 holds a lock of the class while it computes: after a fork by another thread, the
    child would wait for it forever.
    """

    def __init__(self, compute: Callable[[Any], Value]) -> None:
        self.compute, self.__doc__ = compute, compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Value:
        if instance is None:
            return self  # type: ignore[return-value]  # read from the class
        value = vars(instance)[self.name] = self.compute(instance)
        return value
