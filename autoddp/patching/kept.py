"""A property whose value is computed once, without a lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class KeptProperty(Generic[Value]):
    """A property that is computed once, like `functools.cached_property` from Python 3.12 on.

    In 3.11 that one computes under a lock, which all objects of the class share: where one thread
    forks while another computes, nobody releases the lock in the child, which waits for ever.
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
