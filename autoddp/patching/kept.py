"""A cached property without a lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class KeptProperty(Generic[Value]):
    """A cached property, like `functools.cached_property` of Python 3.12 and later.

    In Python 3.11 the latter computes under a lock of the class: after a fork by another thread, a
    child would wait for the lock forever.
    """

    def __init__(self, compute: Callable[[Any], Value]) -> None:
        self.compute, self.__doc__ = compute, compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Value:
        if instance is None:
            return self  # type: ignore[return-value]  # accessed on the class
        value = vars(instance)[self.name] = self.compute(instance)
        return value
