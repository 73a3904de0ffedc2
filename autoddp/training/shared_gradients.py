"""Gradients of the ranks of a node, averaged by the memory that they share.

Torch reads the annotations of the function, so they are no texts here.
"""

from torch import Tensor
from torch.distributed import GradBucket
from torch.futures import Future

from autoddp.comm.group import SUM, Group
from autoddp.comm.position import COLLECTIVE


def averaged(group: Group, bucket: GradBucket) -> Future[Tensor]:
    """Average a bucket of a reducer, in place, while the backward waits."""
    assert group.gradient_memory is not None
    gradients, position = bucket.buffer(), group.position
    with position.at(COLLECTIVE, position.now[1]):  # here it does wait, see `Position`
        group.gradient_memory.all_reduce(gradients, SUM, share=group.size)
    done: Future[Tensor] = Future()
    done.set_result(gradients)
    return done
