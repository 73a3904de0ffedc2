"""What stays by rows: each rule answers on this rank's rows, or says NotImplemented; then it gathers."""

from autoddp.view.rules import (
    attributes,
    gradients,
    losses,
    partial,
    pointwise,
    random,
    reductions,
    reshaping,
    rowwise,
    shapes,
)

__all__ = [
    "attributes",
    "gradients",
    "losses",
    "partial",
    "pointwise",
    "random",
    "reductions",
    "reshaping",
    "rowwise",
    "shapes",
]
