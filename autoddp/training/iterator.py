"""The base of the iterators that do something of ours at every `next` of a DataLoader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class LoaderIterator:
    """A wrapper of an iterator: all but `next` is the inner one's, its length among it."""

    def __init__(self, inner: Any, take: Callable[[Any], Any] = next) -> None:
        self.inner, self.take = inner, take

    def __iter__(self) -> Any:
        return self

    def __len__(self) -> int:
        return len(self.inner)

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # a copy that is not filled yet
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __next__(self) -> Any:
        return self.take(self.inner)
