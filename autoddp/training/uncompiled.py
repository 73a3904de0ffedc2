"""Functions that Dynamo neither compiles nor traces, without an import of Dynamo.

Torch's own decorator imports it at the first call of a function, which takes longer than the import
of torch. A script whose optimizer is not torch's never does so. `compiled` tells Dynamo not to
compile the frames of this file.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from autoddp.torch_internals import disabled_by_dynamo

Function = TypeVar("Function", bound=Callable[..., Any])


def disable_dynamo(function: Function) -> Function:
    """Let Dynamo break its graph at this function, and leave alone what it calls."""
    disabled = disabled_by_dynamo(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return (disabled if "torch._dynamo" in sys.modules else function)(*args, **kwargs)

    call._torchdynamo_disable = True  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]
