"""Batches of any size over 1 to 64 ranks: shard sizes, sharding and gathering."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autoddp.comm.context import Context
from autoddp.view import View, full
from autoddp.view.redistribute import all_gather_rows, shard
from autoddp.view.shard_sizes import even_sizes
from tests.support.fuzz import examples
from tests.support.threads import run_threads
from tests.view.compare import by_rows

pytestmark = pytest.mark.slow

RANKS = st.integers(1, 5) | st.sampled_from([8, 16, 63, 64])
TOTALS = st.integers(0, 20) | st.integers(0, 1000)
DTYPES = st.sampled_from(
    [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64]
)


def view_of_rank(rank, ranks):
    return View(SimpleNamespace(rank=rank, size=ranks, context=Context()), "whole")


@examples(200)
@given(TOTALS, st.integers(1, 64), st.integers(1, 6), st.integers(1, 4))
def test_shards_cover_all_rows_once_in_order(total, ranks, factor, turns):
    held = []
    for rank in range(ranks):
        view = view_of_rank(rank, ranks)
        cuts = view.even_sizes(total)
        assert cuts is view.even_sizes(total)
        assert cuts.per_rank == even_sizes(total, ranks)
        assert (cuts.total, cuts.local, cuts.blocks) == (total, cuts.per_rank[rank], 1)
        assert cuts.largest - cuts.smallest <= 1
        assert cuts.even == (total % ranks == 0)
        held += range(cuts.offset, cuts.offset + cuts.local)
        assert cuts.times(factor).total == total * factor
        assert cuts.times(factor).over(factor) is cuts
        back = cuts.over(factor)
        assert (back is None) == any(size % factor for size in cuts.per_rank)
        assert back is None or back.times(factor) is cuts
        assert cuts.over(0) is None
        several = cuts.repeated(turns)
        assert (several.total, several.local) == (total * turns, cuts.local * turns)
        assert several.of_one_block() is cuts
        assert several.repeated(factor).blocks == turns * factor
    assert held == list(range(total))


@st.composite
def batches(draw):
    """Rows of each rank, the number of blocks, other dimensions, and the shard dimension."""
    ranks = draw(RANKS)
    if draw(st.booleans()):
        sizes = even_sizes(draw(TOTALS if ranks < 6 else st.integers(0, 200)), ranks)
    else:
        few = draw(st.lists(st.integers(0, 4), min_size=min(ranks, 5), max_size=min(ranks, 5)))
        sizes = tuple(few[rank % len(few)] for rank in range(ranks))
    rest = draw(st.lists(st.integers(0, 3), max_size=2))
    return sizes, draw(st.integers(1, 3)), rest, draw(st.integers(0, len(rest)))


def made(sizes, turns, rest, at, dtype=torch.float64):
    """A batch of distinct elements."""
    shape = [*rest[:at], sum(sizes) * turns, *rest[at:]]
    count = torch.Size(shape).numel()
    return (torch.arange(count) - count // 3).reshape(shape).to(dtype)


@examples(60)
@given(batches(), DTYPES, st.booleans())
def test_a_gathered_shard_equals_the_batch(batch, dtype, transposed):
    sizes, turns, rest, at = batch
    whole = made(sizes, turns, rest, at, dtype)
    if transposed and whole.dim() > 1:
        whole = whole.transpose(0, -1).contiguous().transpose(0, -1)

    def here(group):
        cuts = View(group, "whole").shard_sizes(sizes, turns)
        mine = shard(whole, cuts, at)
        assert mine.shape[at] == cuts.local
        got = all_gather_rows(mine.clone(), cuts, at)
        assert (got.shape, got.dtype) == (whole.shape, whole.dtype)
        assert torch.equal(got, whole)
        assert torch.equal(full(by_rows(whole, cuts, at)), whole)
        return mine

    parts = run_threads(here, len(sizes))
    assert sum(mine.numel() for mine in parts) == whole.numel()
    if turns == 1:
        assert torch.equal(torch.cat(parts, at), whole)
