"""Batches of any size over 1 to 64 ranks: how they are cut; that rows give what the whole gives."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autoddp.comm.context import Context
from autoddp.view import ShardedTensor, View, full
from autoddp.view.redistribute import all_gather_rows, shard
from autoddp.view.shard_sizes import even_sizes
from tests.support.fuzz import examples
from tests.support.threads import run_threads
from tests.view.compare import by_rows, difference

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
def test_cuts_are_all_rows_once_in_order(total, ranks, factor, turns):
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
def batches(draw, least=1):
    """Rows of each rank, some none; how many blocks; the rest's shape and where the rows are."""
    ranks = draw(RANKS)
    if draw(st.booleans()):
        sizes = even_sizes(draw(TOTALS if ranks < 6 else st.integers(0, 200)), ranks)
    else:
        few = draw(st.lists(st.integers(0, 4), min_size=min(ranks, 5), max_size=min(ranks, 5)))
        sizes = tuple(few[rank % len(few)] for rank in range(ranks))
    if sum(sizes) < least:
        sizes = (least, *sizes[1:])
    rest = draw(st.lists(st.integers(0, 3), max_size=2))
    return sizes, draw(st.integers(1, 3)), rest, draw(st.integers(0, len(rest)))


def made(sizes, turns, rest, at, dtype=torch.float64):
    """A batch in which every element is another."""
    shape = [*rest[:at], sum(sizes) * turns, *rest[at:]]
    count = torch.Size(shape).numel()
    return (torch.arange(count) - count // 3).reshape(shape).to(dtype)


@examples(60)
@given(batches(least=0), DTYPES, st.booleans())
def test_what_is_split_and_gathered_is_as_before(batch, dtype, transposed):
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


OPERATIONS = {
    "slice": lambda x, d, i, j: x.narrow(d, min(i, j), abs(i - j)),
    "index": lambda x, d, i, j: x.select(d, i),
    "indices": lambda x, d, i, j: x.index_select(d, torch.tensor([i, j, i])),
    "getitem": lambda x, d, i, j: x[i : j + 1],
    "from behind": lambda x, d, i, j: x[-i - 1 :, ...],
    "step": lambda x, d, i, j: x[i :: j + 1],
    "list": lambda x, d, i, j: x[[k % len(x) for k in (i, j)]],
    "mask": lambda x, d, i, j: x[x.detach().sum(tuple(range(1, x.dim()))) > i],
    "cat": lambda x, d, i, j: torch.cat([x, x * 2], d),
    "cat with a part": lambda x, d, i, j: torch.cat([x.narrow(d, 0, i), x], d),
    "stack": lambda x, d, i, j: torch.stack([x, x + i], d),
    "chunk": lambda x, d, i, j: x.chunk(j + 1, d),
    "split": lambda x, d, i, j: x.split(j + 1, d),
    "unbind": lambda x, d, i, j: x.unbind(d)[i],
    "flip": lambda x, d, i, j: x.flip(d),
    "roll": lambda x, d, i, j: x.roll(i, d),
    "repeat": lambda x, d, i, j: x.repeat(2, *[1] * (x.dim() - 1)),
    "interleave": lambda x, d, i, j: x.repeat_interleave(2, d),
    "transposed": lambda x, d, i, j: (x.transpose(0, -1) * 2).transpose(0, -1),
    "flat": lambda x, d, i, j: (x.reshape(-1) * 3).reshape(x.shape),
    "unflattened": lambda x, d, i, j: (
        x.unsqueeze(d).expand(*x.shape[:d], 2, *x.shape[d:]).flatten(d, d + 1)
    ),
    "sum": lambda x, d, i, j: (x.sum(d), x.sum() * 2 - x.mean()),
    "cumulative": lambda x, d, i, j: x.cumsum(d),
    "sorted": lambda x, d, i, j: x.sort(d).values,
    "largest": lambda x, d, i, j: (x.amax(d), x.max()),
    "softmax": lambda x, d, i, j: (x / 50).softmax(d),
    "broadcast": lambda x, d, i, j: x + torch.arange(x.shape[-1]) - x.select(d, i).unsqueeze(d),
    "written": lambda x, d, i, j: x.clone().index_fill_(d, torch.tensor([i]), 7),
    "assigned": lambda x, d, i, j: assigned(x.clone(), i, j),
    "where": lambda x, d, i, j: torch.where(x > i, x, -x),
}


def assigned(x, i, j):
    x[i : j + 1] = 5
    return x


@examples(150)
@given(batches(), st.sampled_from(sorted(OPERATIONS)), st.booleans(), st.data())
def test_rows_give_what_the_whole_gives(batch, name, needs_gradient, data):
    sizes, turns, rest, at = batch
    plain = made(sizes, turns, rest, at)
    d = data.draw(st.sampled_from([at, *range(plain.dim())]))
    most = min(plain.shape[d], plain.shape[0]) - 1
    if most < 0:
        return  # nothing to index
    i, j = (data.draw(st.integers(0, most)) for _ in range(2))

    def what(x):
        try:
            return OPERATIONS[name](x, d, i, j), None
        except (IndexError, RuntimeError, ValueError) as error:
            return None, type(error)

    def tops(out):
        return [y for y in (out if isinstance(out, (tuple, list)) else [out]) if y.requires_grad]

    def here(group):
        plain_x = plain.clone().requires_grad_(needs_gradient)
        rows_x = plain.clone().requires_grad_(needs_gradient)
        rows = by_rows(rows_x, View(group, "whole").shard_sizes(sizes, turns), at)
        assert type(rows) is ShardedTensor
        (want, raised), (got, refused) = what(plain_x), what(rows)
        assert refused == raised
        assert (said := difference(want, got)) is None, said
        if raised is None and tops(want):
            sum(full(y).sin().sum() for y in tops(want)).backward()
            sum(full(y).sin().sum() for y in tops(got)).backward()
            mean = group.all_reduce(rows_x.grad.clone()) / group.size
            assert torch.allclose(plain_x.grad, mean, rtol=1e-9, atol=1e-9)

    run_threads(here, len(sizes))
