"""The rules, in files as torch's documentation groups functions.

Each answers with a local call, with a result, or with NotImplemented: then its function gathers.
"""

from autoddp.view.rules import (
    autograd,
    creation,
    in_place_views,
    indexing,
    joining,
    linear_algebra,
    losses,
    metadata,
    neural,
    normalization,
    partial,
    pointwise,
    random,
    recurrent,
    reductions,
    shapes,
)

__all__ = [
    "autograd",
    "creation",
    "in_place_views",
    "indexing",
    "joining",
    "linear_algebra",
    "losses",
    "metadata",
    "neural",
    "normalization",
    "partial",
    "pointwise",
    "random",
    "recurrent",
    "reductions",
    "shapes",
]
