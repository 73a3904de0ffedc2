"""Gradients of the ranks of a node, averaged by the memory that they share.

Torch reads the annotations of the function, so they are no texts here.
"""

from torch import Tensor
from torch.distributed import GradBucket
from torch.futures import Future

from autoddp.comm.group import SUM, Group
from autoddp.comm.position import COLLECTIVE
from autoddp.training.gradient_access import without_gradient


class BucketAveraging:
    """The state of one reducer's hook.

    Attributes:
        without: The leaves that the latest backward has brought no gradient: to the reducer these
            are zeros. Once the last bucket is ready, it has come to all leaves.
    """

    def __init__(self, group: Group, leaves: list[Tensor]) -> None:
        self.group, self.leaves = group, leaves
        self.without: list[Tensor] = []


def averaged(averaging: BucketAveraging, bucket: GradBucket) -> Future[Tensor]:
    """Average a bucket of a reducer, in place; the backward waits."""
    group = averaging.group
    assert group.gradient_memory is not None
    if bucket.is_last():
        averaging.without = without_gradient(averaging.leaves)
    gradients, position = bucket.buffer(), group.position
    with position.at(COLLECTIVE, position.now[1]):  # here it does wait, see `Position`
        group.gradient_memory.all_reduce(gradients, SUM, share=group.size)
    done: Future[Tensor] = Future()
    done.set_result(gradients)
    return done
