"""The local view: each rank's script sees its own share, as in data parallelism written by hand."""

from __future__ import annotations

from collections import deque
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import IterableDataset

from autoddp.patching import Call, Feature, patch
from autoddp.training.backwards import Backwards, named
from autoddp.training.iterator import LoaderIterator
from autoddp.training.loading.sampling import Fetching, changed
from autoddp.view.rules.autograd import listed

if TYPE_CHECKING:
    from autoddp.effects.run import Run

PRINTED = "losses and metrics that are printed are those of rank 0's rows alone"


class LocalView(Feature):
    """Plain tensors with this rank's rows; gradients averaged, weighted by share of the batch."""

    name = "local-view"
    without = "every rank trains on all rows, with its own gradients"
    views = ("local",)

    def __init__(self, run: Run) -> None:
        self.run, self.view, self.group = run, run.view, run.group
        self.fetching = Fetching(run)
        self.share = 1.0  # of the batch fetched last: this rank's rows times ranks, by all rows
        self.backwards = Backwards(run.view, late=False)

    def setup(self, undo: ExitStack) -> None:
        """Show the job to the script, its process group included."""
        self.run.report.say_once("view", "--view local", PRINTED)
        before = dist.group.WORLD
        dist.group.WORLD = self.group.pg
        undo.callback(setattr, dist.group, "WORLD", before)

    @patch("torch.utils.data:DataLoader.__iter__", why="each rank fetches its rows of every batch")
    def share_batches(self, call: Call) -> Any:
        """Fetch map-style data sets by rows; take the rows of others after the fetch."""
        loader = call.instance
        if not self.view.context.is_rank():
            return call.wrapped()
        if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
            with changed(loader, in_order=True):  # any order is allowed, and ranks need the same
                return LoaderIterator(call.wrapped(), self._cut)
        inner = self.fetching.start(loader, call.wrapped, own_draws=True)
        return LoaderIterator(inner, partial(self._fetched, inner._index_sampler.sizes))

    @patch("torch.autograd:backward", why="gradients are averaged over ranks before it returns")
    def backward(self, call: Call) -> None:
        """Average gradients; a mean over this rank's rows counts by its share of the batch."""
        averages = self.run.options.average_every is None
        if not call.named or not averages or not self.view.context.is_rank():
            return call.plain()
        given = named(call)
        tops, some = listed(given.pop("tensors")), listed(given.get("grad_tensors"))
        if not self.backwards.depth:  # else its seeds come of those that are weighed already
            some += [None] * (len(tops) - len(some))
            seeds = zip(tops, some, strict=True)
            given["grad_tensors"] = [self._weighed(top, seed) for top, seed in seeds]
        self.backwards.run(call.wrapped, tops, given)
        return None

    def _weighed(self, top: Tensor, seed: Tensor | None) -> Tensor | None:
        if seed is None and (top.numel() != 1 or not top.is_floating_point()):
            return None  # refused by torch: it is no real scalar
        return self.share * (torch.ones_like(top) if seed is None else seed)

    def _fetched(self, sizes: deque[Any], inner: Any) -> Any:
        """Fetch this rank's rows of the next batch."""
        batch = self.fetching.fetch(inner)
        (rows, *_), world = sizes.popleft(), self.run.world
        self.share = 1.0 if rows is None else rows[world.rank] * world.world_size / sum(rows)
        return batch

    def _cut(self, inner: Any) -> Any:
        """Cut this rank's rows out of the next batch, which every rank reads whole."""
        batch = next(inner)
        rows = next(
            (x.shape[0] for x in tree_leaves(batch) if isinstance(x, Tensor) and x.dim()), 0
        )
        self.share = 1.0
        if rows < self.group.size:
            return batch
        cuts = self.view.even_sizes(rows)
        self.share = cuts.local * self.group.size / rows

        def mine(x: Any) -> Any:
            batched = isinstance(x, Tensor) and x.dim() and x.shape[0] == rows
            return x[cuts.offset : cuts.offset + cuts.local] if batched else x

        return tree_map(mine, batch)
