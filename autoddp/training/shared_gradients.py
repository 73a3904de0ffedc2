"""Gradients of the ranks of a node, averaged by the memory that they share.

Torch reads the annotations of the function, so they are no texts here.
"""

from torch import Tensor
from torch.distributed import GradBucket
from torch.futures import Future

from autoddp.comm.group import SUM, Group
from autoddp.comm.nodes_memory import NodesMemory
from autoddp.comm.position import COLLECTIVE


def averaged(group: Group, bucket: GradBucket) -> Future[Tensor]:
    """Average a bucket of a reducer, in place, before the last bucket's call returns.

    On one node the backward waits. Between nodes all but the last bucket travel while it goes on;
    the reducer looks at no bucket before it has called this for the last one.
    """
    assert group.gradient_memory is not None
    gradients, position, memory = bucket.buffer(), group.position, group.gradient_memory
    with position.at(COLLECTIVE, position.now[1]):  # here it does wait, see `Position`
        if isinstance(memory, NodesMemory) and not bucket.is_last():
            memory.start_all_reduce(gradients, SUM, share=group.size)
        else:
            memory.all_reduce(gradients, SUM, share=group.size)
    done: Future[Tensor] = Future()
    done.set_result(gradients)
    return done
