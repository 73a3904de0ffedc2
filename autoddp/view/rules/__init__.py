"""The rules for what stays by rows: on this rank's rows, or NotImplemented; then it gathers."""

from autoddp.view.rules import (
    attributes,
    gradients,
    indexing,
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
    "indexing",
    "losses",
    "partial",
    "pointwise",
    "random",
    "reductions",
    "reshaping",
    "rowwise",
    "shapes",
]
