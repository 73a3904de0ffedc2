"""The ranks over which parameters are sharded: all of a job, or those of each node.

On several nodes gathers then stay inside a node, and only a gradient's shards travel between nodes:
the hybrid sharding of FSDP (https://arxiv.org/abs/2304.11277, section 3.2.2).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from autoddp.comm.group import SUM, Group
from autoddp.torch_internals import plain_tensors


class ShardGroup:
    """All ranks, of which each holds one shard."""

    def __init__(self, job: Group) -> None:
        self.job, self.rank, self.size = job, job.rank, job.size
        self.name = f"{self.size} ranks"

    def all_gather(self, x: Tensor, what: str) -> Tensor:
        """Gather the tensors of the ranks that hold one whole, stacked in their order."""
        return self.job.all_gather(x, what)

    def all_reduce(self, x: Tensor, op: Any = SUM) -> Tensor:
        """Reduce `x` in place over the ranks that hold one whole."""
        return self.job.all_reduce(x, op)

    def reduce_scatter(self, x: Tensor) -> Tensor:
        """Average `x`, flat, over all ranks of the job, and return the part of this rank."""
        return self.job.reduce_scatter(x)


class NodeGroup(ShardGroup):
    """The ranks of a node hold one whole; those of other nodes another one, of equal shards.

    All ranks of the job call each method at the same place of the program, where they compare what
    they enter.

    Args:
        job: The ranks of several nodes, of which each has as many.
    """

    def __init__(self, job: Group) -> None:
        placed = job.nodes()
        nodes = [[r for r, at in enumerate(placed) if at == n] for n in range(max(placed) + 1)]
        own = nodes[placed[job.rank]]
        self.job, self.rank, self.size = job, own.index(job.rank), len(own)
        self.name = f"the {self.size} ranks of each node"
        alike = [ranks[self.rank] for ranks in nodes]
        self._own, self._alike = job.connect(own), job.connect(alike)

    def all_gather(self, x: Tensor, what: str) -> Tensor:
        out = x.new_empty((self.size, *x.shape))
        with self.job.together(what, x) as place, plain_tensors():
            place.agree()
            if x.numel():
                whole = out.view(-1).view(torch.uint8)  # backends know some dtypes only
                self._own._allgather_base(whole, x.contiguous().view(-1).view(torch.uint8)).wait()
                self.job.gathered += out.nbytes - x.nbytes
        return out

    def all_reduce(self, x: Tensor, op: Any = SUM) -> Tensor:
        with self.job.together("all-reduce", x) as place, plain_tensors():
            place.agree()
            _reduce(self._own, x, op)
        return x

    def reduce_scatter(self, x: Tensor) -> Tensor:
        step = x.numel() // self.size
        with self.job.together("reduce-scatter", x) as place, plain_tensors():
            place.agree()
            if self.job.native and not x.is_cpu:
                part = x.new_empty(step)
                self._own._reduce_scatter_base(part, x, dist.ReduceScatterOptions()).wait()
            else:  # gloo of old versions has none
                _reduce(self._own, x)
                part = x[self.rank * step : (self.rank + 1) * step].clone()
            _reduce(self._alike, part)
            return part.div_(self.job.size)


def by_nodes(job: Group) -> NodeGroup | None:
    """Return the ranks of each node; None if parameters can't be sharded alike on all nodes."""
    placed = job.nodes()
    counts = {placed.count(node) for node in placed}
    return NodeGroup(job) if max(placed) and len(counts) == 1 and counts != {1} else None


def _reduce(pg: dist.ProcessGroup, x: Tensor, op: Any = SUM) -> None:
    options = dist.AllreduceOptions()
    options.reduceOp = op
    pg.allreduce([x], options).wait()
