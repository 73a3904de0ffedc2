"""Messages of errors raised on local rows, rewritten with the shapes of the whole batch."""

from __future__ import annotations

import re
import signal
import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_map

from autoddp.comm import accelerator
from autoddp.view.containers import is_shape

WRONG = (RuntimeError, ValueError, IndexError, TypeError)  # what a wrong shape or index raises
NUMBER = re.compile(r"-?\d+")
OTHERS = (torch.OutOfMemoryError, dist.DistError)  # subclasses with other causes


def reword(error: Exception, func: Any, args: Any, kwargs: dict[str, Any]) -> None:
    """Give `error`, which `func` raised on local rows, the message for the whole batch.

    Only the numbers in the message may differ. The rank must not gather here, as other ranks may
    have no error: it repeats the call on a copy of the whole shape, and undoes its draws.
    """
    if isinstance(error, OTHERS):
        return
    try:
        whole_args, whole_kwargs = tree_map(as_whole, (args, kwargs), is_leaf=is_shape)
        new = _raised(lambda: func(*whole_args, **whole_kwargs))
    except Exception:  # an error of the copy is not the script's
        return
    if type(new) is type(error) and NUMBER.sub("", str(new)) == NUMBER.sub("", str(error)):
        error.args = new.args


def of_handler(error: BaseException) -> bool:
    """Return whether the handler of a signal raised `error`, so that any call may have ended in it.

    torch's handler of SIGCHLD does so where a loader's worker has ended.
    """
    handlers = map(signal.getsignal, signal.valid_signals())
    codes = {getattr(handler, "__code__", None) for handler in handlers}
    return any(frame.f_code in codes for frame, _ in traceback.walk_tb(error.__traceback__))


def _raised(call: Callable[[], Any]) -> Exception | None:
    states = torch.get_rng_state(), accelerator.states()
    try:
        with torch.no_grad():
            call()
    except Exception as new:
        return new
    finally:
        torch.set_rng_state(states[0])
        accelerator.set_states(states[1])
    return None


def as_whole(x: Any) -> Any:
    """Return a copy of a tensor; for a sharded one, local rows repeated to the whole shape."""
    if not isinstance(x, Tensor):
        return x
    rows: Tensor = getattr(x, "local", x).detach()  # of `ShardedTensor`, and of a `Partial`
    sizes = getattr(x, "sizes", None)
    if sizes is None:
        return rows.clone()
    index = torch.arange(sizes.total, device=rows.device) % sizes.local
    return rows.index_select(x.shard_dim, index)  # type: ignore[attr-defined]
