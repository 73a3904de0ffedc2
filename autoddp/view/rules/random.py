"""Random functions of the script: drawn for the whole batch, kept by rows."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from autoddp.view.draws import Draws
from autoddp.view.rows import Rows, split
from autoddp.view.table import rule

DROPOUTS = (
    "dropout",
    "alpha_dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "feature_alpha_dropout",
)


@rule(*DROPOUTS, "rand_like", "randn_like", "randint_like", "uniform_", "normal_", "exponential_")
def draw(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Draw masks and noise as one process does, so that every generator is as there afterwards."""
    me, *rest = args
    if not split(me) or "generator" in kwargs or any(isinstance(x, Tensor) for x in rest):
        return NotImplemented
    if me.cuts.smallest < 2 or (func.__name__.startswith("dropout") and me.at != 0):
        return NotImplemented  # a dimension of size 1 hides the memory layout
    with Draws.of(me.cuts, me.at):
        out = func(me.local, *rest, **kwargs)
    return me if out is me._local else Rows(out, me.cuts, me.at)
