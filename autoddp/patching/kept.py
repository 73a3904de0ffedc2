"""A property whose value is computed once, without a lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class KeptProperty(Generic[Value]):
    """A property that is computed once, like `functools.cached_property` from Python 3.12 on.

    That of 3.11 computes under a lock of the whole class: if one thread forks while another
    computes, the child waits for the lock forever.
    """

    def __init__(self, compute: Callable[[Any], Value]) -> None:
        self.compute, self.__doc__ = compute, compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Value:
        if instance is None:
            return self  # type: ignore[return-value]  # of the class
        value = vars(instance)[self.name] = self.compute(instance)
        return value
