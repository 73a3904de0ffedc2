"""A call of a patched function: its arguments by name, and the call again with other arguments."""

from __future__ import annotations

import inspect
import posix
from collections.abc import Callable
from functools import lru_cache, wraps
from types import BuiltinMethodType, ModuleType
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def stands_for(original: Any) -> Callable[[Function], Function]:
    """Dress the decorated function as `original`; torch.compile looks into neither."""

    def dress(function: Function) -> Function:
        wraps(original)(function)
        function._torchdynamo_disable = True  # type: ignore[attr-defined]
        return function

    return dress


def _utime(
    path: Any, times: Any = None, *, ns: Any = None, dir_fd: Any = None, follow_symlinks: Any = True
) -> None:
    """Name the arguments of `os.utime`, which is written in C and has no signature."""


@lru_cache(maxsize=256)
def _signature(function: Any) -> inspect.Signature:
    return inspect.signature(_utime if function is posix.utime else function)


class Call:
    """A call of a wrapped function; `named` are its arguments, none where they do not fit."""

    def __init__(self, wrapped: Callable[..., Any], args: Any, kwargs: Any) -> None:
        self.wrapped, self.args, self.kwargs = wrapped, args, kwargs
        self.named: dict[str, Any] = {}
        # of a method the function alone: `_signature` would keep the method's object for ever
        function = getattr(wrapped, "__func__", wrapped)
        bound = () if function is wrapped else (wrapped.__self__,)  # type: ignore[attr-defined]
        kept = not isinstance(wrapped, BuiltinMethodType) or isinstance(
            wrapped.__self__, ModuleType
        )
        try:
            signature = _signature(function) if kept else inspect.signature(wrapped)
            fit = signature.bind(*bound, *args, **kwargs)
        except (TypeError, ValueError):  # ValueError: a C function without a signature
            return  # the function itself words the error best
        self.named, self._fit, self._bound = fit.arguments, fit, len(bound)

    @property
    def name(self) -> str:
        """Return the full name of the function: torch.serialization.save."""
        kind = type(self.wrapped)
        return f"{self.wrapped.__module__}.{getattr(self.wrapped, '__qualname__', kind.__name__)}"

    def plain(self) -> Any:
        """Make the call with the arguments that were given."""
        return self.wrapped(*self.args, **self.kwargs)

    def changed(self, **values: Any) -> Any:
        """Make the call with `values` in place of the arguments of these names."""
        args, parameters = list(self.args), self._fit.signature.parameters.values()
        known = [one.name for one in parameters if one.kind <= one.POSITIONAL_OR_KEYWORD]
        for at, name in enumerate(known[self._bound : self._bound + len(args)]):
            args[at] = values.pop(name, args[at])
        return self.wrapped(*args, **{**self.kwargs, **values})
