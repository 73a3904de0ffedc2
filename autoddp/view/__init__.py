"""The global view: all ranks run the whole script on the same values.

A `ShardedTensor` stands for a whole batch of which this rank holds some rows. A rule for each torch
function says what is computed on local rows and how the result is sharded; a function without a
rule gathers first. A loss is a `Partial` sum until somebody reads it.
"""

from autoddp.view import dispatch as dispatch  # implements functions of sharded tensors
from autoddp.view import rules as rules  # registers the rules
from autoddp.view.shard_sizes import ShardSizes
from autoddp.view.sharded_tensor import Partial, ShardedTensor, full, is_sharded
from autoddp.view.state import View

__all__ = ["Partial", "ShardSizes", "ShardedTensor", "View", "full", "is_sharded"]
