"""The global view: all ranks run the whole script on the same values.

Work is left out only where that is provably exact.

`Rows` stands for a whole batch of which this rank holds its rows. Row-wise operations stay local, a
loss costs at most one small all-reduce, and everything else gathers first, so it is exact as well.
"""

from autoddp.view import rules as rules  # fills the table
from autoddp.view.cuts import Cuts
from autoddp.view.rows import Partial, Rows, full, split
from autoddp.view.state import View

__all__ = ["Cuts", "Partial", "Rows", "View", "full", "split"]
