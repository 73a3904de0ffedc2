"""The global view: all ranks run the whole script on the same values.

A `ShardedTensor` has the shape of the whole batch, and holds this rank's rows. A rule for each
torch function defines what is computed locally and how the result is placed; without a rule it
gathers first. A loss is a `Partial` sum until it is read.
"""

from autoddp.view import dispatch as dispatch  # implements functions of sharded tensors
from autoddp.view import rules as rules  # registers the rules
from autoddp.view.shard_sizes import ShardSizes
from autoddp.view.sharded_tensor import Partial, ShardedTensor, full, is_sharded
from autoddp.view.state import View

__all__ = ["Partial", "ShardSizes", "ShardedTensor", "View", "full", "is_sharded"]
