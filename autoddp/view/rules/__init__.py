"""What stays by rows. Each rule answers on this rank's rows, or says NotImplemented: then it gathers."""

from autoddp.view.rules import (  # noqa: F401  # importing them fills the table
    attributes,
    gradients,
    losses,
    partial,
    pointwise,
    random,
    reductions,
    rowwise,
    shapes,
)
