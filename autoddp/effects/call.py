"""A call of a function that a feature stands in for: read by the names of its arguments, made with others."""

from __future__ import annotations

import inspect
import posix
from collections.abc import Callable
from functools import lru_cache, wraps
from types import BuiltinMethodType, ModuleType
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def stands_for(original: Any) -> Callable[[Function], Function]:
    """Have the decorated function look like `original`, which torch.compile would not look into."""

    def dress(function: Function) -> Function:
        wraps(original)(function)
        function._torchdynamo_disable = True  # type: ignore[attr-defined]
        return function

    return dress


def _utime(
    path: Any, times: Any = None, *, ns: Any = None, dir_fd: Any = None, follow_symlinks: Any = True
) -> None:
    """What `os.utime`, which is written in C, calls its arguments."""


@lru_cache(maxsize=256)
def _signature(function: Any) -> inspect.Signature:
    return inspect.signature(_utime if function is posix.utime else function)


class Call:
    """A call of a wrapped function; `named` are its arguments, none where they do not fit."""

    def __init__(self, wrapped: Callable[..., Any], args: Any, kwargs: Any) -> None:
        self.wrapped, self.args, self.kwargs = wrapped, args, kwargs
        self.named: dict[str, Any] = {}
        function = getattr(wrapped, "__func__", wrapped)  # a method's own would be kept for ever
        self._bound = () if function is wrapped else (wrapped.__self__,)  # type: ignore[attr-defined]
        kept = not isinstance(wrapped, BuiltinMethodType) or isinstance(wrapped.__self__, ModuleType)
        try:
            signature = _signature(function) if kept else inspect.signature(wrapped)
            self._fit = signature.bind(*self._bound, *args, **kwargs)
        except (TypeError, ValueError):  # ValueError: it is written in C, and does not tell
            return  # the function itself words it best
        self.named = self._fit.arguments

    @property
    def name(self) -> str:
        """What is called, in full: torch.serialization.save."""
        kind = type(self.wrapped)
        return f"{self.wrapped.__module__}.{getattr(self.wrapped, '__qualname__', kind.__name__)}"

    def plain(self) -> Any:
        """The call as it was made."""
        return self.wrapped(*self.args, **self.kwargs)

    def changed(self, **values: Any) -> Any:
        """The call with other values for some arguments."""
        fit = inspect.BoundArguments(self._fit.signature, dict(self._fit.arguments))
        fit.arguments.update(values)
        return self.wrapped(*fit.args[len(self._bound) :], **fit.kwargs)
