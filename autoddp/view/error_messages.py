"""Messages of errors that a function raised on local rows, with the shapes of the whole batch."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_map

from autoddp.comm import accelerator
from autoddp.view.aliases import is_shape

WRONG = (RuntimeError, ValueError, IndexError, TypeError)  # what a wrong shape or index raises
NUMBER = re.compile(r"-?\d+")
OTHERS = (torch.OutOfMemoryError, dist.DistError)  # subclasses that have other causes


def reword(error: Exception, func: Any, args: Any, kwargs: dict[str, Any]) -> None:
    """Give `error`, which `func` raised on local rows, the message that the whole batch gives.

    Only numbers may differ. A rank must not gather here, as others may have no error: the call is
    repeated on a batch of the same shape, and its draws are undone.
    """
    if isinstance(error, OTHERS):
        return
    try:
        given, named = tree_map(as_whole, (args, kwargs), is_leaf=is_shape)
        new = _raised(lambda: func(*given, **named))
    except Exception:  # an error of the copy is not the script's
        return
    if type(new) is type(error) and NUMBER.sub("", str(new)) == NUMBER.sub("", str(error)):
        error.args = new.args


def _raised(again: Callable[[], Any]) -> Exception | None:
    drawn = torch.get_rng_state(), accelerator.states()
    try:
        with torch.no_grad():
            again()
    except Exception as new:
        return new
    finally:
        torch.set_rng_state(drawn[0])
        accelerator.set_states(drawn[1])
    return None


def as_whole(x: Any) -> Any:
    """Return a copy of a tensor; for a sharded one, local rows repeated to the whole shape."""
    if not isinstance(x, Tensor):
        return x
    rows: Tensor = getattr(x, "local", x).detach()  # of `ShardedTensor`, and of a `Partial`
    sizes = getattr(x, "sizes", None)
    if sizes is None:
        return rows.clone()
    again = torch.arange(sizes.total, device=rows.device) % sizes.local
    return rows.index_select(x.shard_dim, again)  # type: ignore[attr-defined]
