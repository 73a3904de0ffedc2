"""Operations of autoddp, which modes of the script do not see: it counts, or changes, its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import wraps
from typing import Any, TypeVar

from autoddp import torch_internals
from autoddp.torch_internals import dispatch_depth, function_depth

Called = TypeVar("Called", bound=Callable[..., Any])


@contextmanager
def no_modes() -> Iterator[None]:
    """Disable the modes of the script (`TorchDispatchMode`, `TorchFunctionMode`) inside."""
    modes = [torch_internals.pop_function_mode() for _ in range(function_depth())]
    try:
        with torch_internals.outside_modes() if dispatch_depth() else nullcontext():
            yield
    finally:
        for mode in reversed(modes):
            torch_internals.push_function_mode(mode)


def unseen(function: Called) -> Called:
    """Return `function`, which runs without modes, but for those of a compiler that traces."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not (dispatch_depth() or function_depth()) or torch_internals.compiler_traces():
            return function(*args, **kwargs)
        with no_modes():
            return function(*args, **kwargs)

    return call  # type: ignore[return-value]
