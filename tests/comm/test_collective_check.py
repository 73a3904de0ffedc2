"""Small tensors by way of rank 0, and ranks that part on the way."""

from __future__ import annotations

import re

import pytest
import torch

from autoddp.comm.group import MAX, MIN, SMALL, SUM
from autoddp.errors import Disagreement
from tests.support.ranks import run_ranks

KINDS = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.uint8,
    torch.complex64,
)


def of(rank, dtype, shape=(2, 3)):
    return (torch.arange(6).view(shape) + rank).to(dtype)


@pytest.mark.parametrize("nproc", [1, 2, 3])
def test_sums_and_stacks_are_those_of_all_ranks(nproc):
    def rank(group):
        found = []
        for dtype in KINDS:
            found.append(group.all_reduce(of(group.rank, dtype), SUM))
            found.append(group.all_gather(of(group.rank, dtype)))
        found += [group.all_reduce(of(group.rank, torch.int64), op) for op in (MIN, MAX)]
        found.append(group.all_gather(of(group.rank, torch.bool).t()))
        found.append(group.all_gather(torch.tensor(group.rank)))
        found.append(group.all_gather(torch.empty(0, 3)))
        return [x.tolist() for x in found]

    want = []
    for dtype in KINDS:
        stacked = torch.stack([of(r, dtype) for r in range(nproc)])
        want += [stacked.sum(0, dtype=dtype), stacked]
    ints = torch.stack([of(r, torch.int64) for r in range(nproc)])
    want += [ints.amin(0), ints.amax(0), ints.bool().transpose(1, 2)]
    want += [torch.arange(nproc), torch.empty(nproc, 0, 3)]
    assert run_ranks(rank, nproc) == [[x.tolist() for x in want]] * nproc


def test_layouts_scalars_conjugates_and_gradients_stay_as_they_are():
    def rank(group):
        turned = torch.arange(6.0).view(2, 3).t()
        conjugate = torch.tensor([1 + 2j]).conj()
        negated = torch.tensor([3 + 2j]).conj().imag  # contiguous, and its sign is a bit
        leaf = torch.ones((), requires_grad=True)
        group.all_reduce(turned)
        gathered = group.all_gather(conjugate)
        with torch.inference_mode():
            quiet = group.all_reduce(torch.ones(2))
        return (
            turned.tolist(),
            turned.stride(),
            gathered.tolist(),
            group.all_gather(leaf).tolist(),
            quiet.tolist(),
            group.all_reduce(negated).tolist(),
        )

    want = (
        [[0.0, 6.0], [2.0, 8.0], [4.0, 10.0]],
        (1, 3),
        [[1 - 2j]] * 2,
        [1.0, 1.0],
        [2.0, 2.0],
        [-4.0],
    )
    assert run_ranks(rank, 2) == [want] * 2


@pytest.mark.parametrize("turn", [torch.clone, torch.t])
def test_autograd_does_not_see_a_small_tensor_written_whatever_its_layout(turn):
    def rank(group):
        leaf = torch.ones(2, 3, requires_grad=True)
        x = turn(leaf * 2)
        squares = (x**2).sum()  # keeps x for backward
        group.all_reduce(x)
        with torch.inference_mode():
            quiet = group.all_reduce(turn(torch.ones(2, 3)))
        squares.backward()
        return x.tolist(), x._version, quiet.sum().item(), leaf.grad is not None

    for value, version, quiet, differentiated in run_ranks(rank, 2):
        assert value == turn(torch.full((2, 3), 4.0)).tolist()
        assert (version, quiet, differentiated) == (0, 12.0, True)


@pytest.mark.parametrize("numel", [1, SMALL])
def test_ranks_in_different_collectives_are_told_which(numel):
    """The same shapes: the sum would be wrong, and nobody would know."""

    def rank(group):
        x = torch.ones(numel)
        act = group.all_gather if group.rank == 2 else group.all_reduce
        with pytest.raises(Disagreement) as error:
            act(x)
        return str(error.value)

    zero, one, two = run_ranks(rank, 3)
    assert zero == one == two
    assert f"rank 2 is in «all-gather of float32[{numel}] at test_collective_check.py" in zero
    assert f"where rank 0 is in «all-reduce of float32[{numel}] at test_collective_check.py" in zero


def test_an_effect_that_one_rank_alone_had_is_told_at_the_next_meeting():
    def rank(group):
        if group.rank == 0:
            group.call("alone", lambda: 1)
        with pytest.raises(Disagreement) as error:
            group.all_reduce(torch.ones(1))
        return str(error.value)

    assert "(0 side effects came before, 1)" in run_ranks(rank, 2)[1]


@pytest.mark.parametrize(
    ("stamps", "said"),
    [
        ([["0 backward 0"], ["0 backward 1"]], "«backward 1» where rank 0 is in «backward 0»"),
        ([[], ["0 backward 1"]], "«backward 1» where rank 0 is in «all-reduce of .*»"),
        ([["0 backward 0"], []], "«all-reduce of .*» where rank 0 is in «backward 0»"),
        ([["0 a", "0 b"], ["0 c", "0 b"]], "«another collective, some time before all-reduce of"),
    ],
)
def test_what_is_only_noted_is_compared_at_the_next_exchange(stamps, said):
    def rank(group):
        for stamp in stamps[group.rank]:
            group.collective_check.note(stamp)
        with pytest.raises(Disagreement) as error:
            group.all_reduce(torch.ones(1))
        return str(error.value)

    zero, one = run_ranks(rank, 2)
    assert zero == one
    assert re.match(f"rank 1 is in {said}", zero)
