"""A call of a patched function, with its arguments by name."""

from __future__ import annotations

import inspect
import posix
from collections.abc import Callable
from functools import lru_cache, partial, wraps
from types import BuiltinMethodType, ModuleType
from typing import Any, TypeVar

from autoddp.patching.kept import KeptProperty

Function = TypeVar("Function", bound=Callable[..., Any])


def stands_for(original: Any) -> Callable[[Function], Function]:
    """Return a decorator that copies the metadata of `original`; torch.compile skips the result."""

    def decorate(function: Function) -> Function:
        wraps(original)(function)
        function._torchdynamo_disable = True  # type: ignore[attr-defined]
        return function

    return decorate


def _utime(
    path: Any, times: Any = None, *, ns: Any = None, dir_fd: Any = None, follow_symlinks: Any = True
) -> None:
    """Provide the signature of `os.utime`, which has none as a C function."""


class Binding:
    """The signature of a function, to find the arguments of calls by name.

    `Signature.bind` makes fifty calls of Python for a function of six parameters.
    """

    def __init__(self, function: Any) -> None:
        self.signature = inspect.signature(_utime if function is posix.utime else function)
        parameters = self.signature.parameters.values()
        either, named = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
        self.simple = all(p.kind in (either, named) for p in parameters)  # none is `*args`
        self.names = [p.name for p in parameters]
        self.positional = sum(p.kind is either for p in parameters)
        self.required = {p.name for p in parameters if p.default is p.empty}

    def bind(self, args: Any, kwargs: Any) -> inspect.BoundArguments:
        """Do what `Signature.bind` does."""
        given = dict(zip(self.names, args, strict=False))
        fits = len(args) <= self.positional and given.keys().isdisjoint(kwargs)
        given |= kwargs
        if not (self.simple and fits and self.required <= given.keys() <= {*self.names}):
            return self.signature.bind(*args, **kwargs)
        if kwargs:
            given = {name: given[name] for name in self.names if name in given}
        return inspect.BoundArguments(self.signature, given)


_binding = lru_cache(maxsize=256)(Binding)


class Call:
    """A call of a patched function.

    Attributes:
        wrapped: The original function; a bound method for a method.
        instance: The object of a method, None for a function.
        args, kwargs: The arguments.
        target: The patched name, "module:Dotted.path".
    """

    def __init__(
        self,
        wrapped: Callable[..., Any],
        args: Any,
        kwargs: Any,
        instance: Any = None,
        target: str = "",
    ) -> None:
        self.wrapped, self.args, self.kwargs = wrapped, args, kwargs
        self.instance, self.target = instance, target

    @property
    def named(self) -> dict[str, Any]:
        """Return the arguments by name; empty if they do not fit the signature."""
        return {} if self._fit is None else self._fit.arguments

    @KeptProperty
    def _fit(self) -> inspect.BoundArguments | None:
        # cache by function, as a cached bound method would keep its object alive
        function, bound = getattr(self.wrapped, "__func__", self.wrapped), self._bound
        cached = not isinstance(self.wrapped, BuiltinMethodType) or isinstance(
            self.wrapped.__self__, ModuleType
        )
        try:
            binding = _binding(function) if cached else Binding(self.wrapped)
            return binding.bind((*bound, *self.args), self.kwargs)
        except (TypeError, ValueError):  # ValueError: a C function without a signature
            return None  # the call raises a better error

    @property
    def _bound(self) -> tuple[Any, ...]:
        if hasattr(self.wrapped, "__func__"):
            return (self.wrapped.__self__,)  # type: ignore[attr-defined]
        return ()

    @property
    def name(self) -> str:
        """Return the full name of the function: torch.serialization.save."""
        kind = type(self.wrapped)
        return f"{self.wrapped.__module__}.{getattr(self.wrapped, '__qualname__', kind.__name__)}"

    def plain(self) -> Any:
        """Call the original function with the given arguments."""
        return self.wrapped(*self.args, **self.kwargs)

    def changed(self, **values: Any) -> Any:
        """Call the original function with these arguments replaced."""
        assert self._fit is not None
        args, parameters = list(self.args), self._fit.signature.parameters.values()
        names = [p.name for p in parameters if p.kind <= p.POSITIONAL_OR_KEYWORD]
        skip = len(self._bound)
        for at, name in enumerate(names[skip : skip + len(args)]):
            args[at] = values.pop(name, args[at])
        return self.wrapped(*args, **{**self.kwargs, **values})


def serve(
    method: Callable[[Call], Any],
    target: str,
    wrapped: Callable[..., Any],
    instance: Any,
    args: Any,
    kwargs: Any,
) -> Any:
    """Call a feature's method with the arguments of a wrapt wrapper."""
    return method(Call(wrapped, args, kwargs, instance, target))


def is_ours(wrapper: Any) -> bool:
    """Return whether a wrapt wrapper calls `serve`."""
    serves = wrapper._self_wrapper
    return isinstance(serves, partial) and serves.func is serve
