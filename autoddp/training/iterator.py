"""A DataLoader's iterator that does something of ours at every `next`."""

from __future__ import annotations

from typing import Any


class LoaderIterator:
    """All but `next` is the inner iterator's: its length, and what libraries keep on it."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __iter__(self) -> Any:
        return self

    def __len__(self) -> int:
        return len(self.inner)

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # a copy that is not filled yet
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __next__(self) -> Any:
        return next(self.inner)
