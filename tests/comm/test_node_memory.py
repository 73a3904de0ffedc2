"""Memory that ranks of a node share: the same bits on all ranks, and an end that all see."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import time
from contextlib import suppress

import pytest
import torch
import torch.distributed as dist

from autoddp.comm.line import Line, Lines
from autoddp.comm.node_barrier import BROKEN, LOOK
from autoddp.comm.node_memory import SLOT, SMALL, shared
from autoddp.errors import Disagreement
from tests.support.ranks import run_ranks

KINDS = (torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.uint8)
# elements: fewer than ranks, what is added up at once, by parts, and in several pieces
COUNTS = (1, 2, 7, SMALL // 8, SMALL // 4 + 3, SLOT // 8 + 1, 3 * SLOT // 4 + 5)


def made(dtype, count, rank):
    """What a rank holds: of numbers whose sum depends on the order."""
    generator = torch.Generator().manual_seed(1000 * rank + count % 1000)
    x = torch.rand(count, generator=generator, dtype=torch.float64) * 100
    return x.to(dtype)


def reduces(group):
    wrong = []
    for dtype in KINDS:
        for count in COUNTS:
            row = made(dtype, count, group.rank).view(torch.uint8)
            out = torch.empty(group.size, row.numel(), dtype=torch.uint8)
            group.memory.all_gather(out, row)
            parts = [made(dtype, count, rank) for rank in range(group.size)]
            if not torch.equal(out, torch.stack([part.view(torch.uint8) for part in parts])):
                wrong.append((str(dtype), count, "gathered"))
            want = parts[0].clone()
            for part in parts[1:]:
                want = want + part
            x = parts[group.rank].clone()
            group.memory.all_reduce(x)
            if not torch.equal(x, want):
                wrong.append((str(dtype), count, "reduced"))
    return wrong


@pytest.mark.parametrize("nproc", [2, 3])
def test_sums_are_taken_in_the_order_of_the_ranks_and_all_is_gathered(nproc):
    assert run_ranks(reduces, nproc) == [[]] * nproc


def means(group):
    wrong = []
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        for count in COUNTS:
            x = made(dtype, count, 7)
            before = x.clone()
            group.memory.all_reduce(x, mean=True)
            if not torch.equal(x, before):
                wrong.append((str(dtype), count))
    for count in COUNTS:
        parts = [made(torch.float64, count, rank) for rank in range(group.size)]
        x = parts[group.rank].clone()
        group.memory.all_reduce(x, mean=True)
        if not torch.equal(x, sum(parts[1:], parts[0]) / group.size):
            wrong.append(count)
    zeros = torch.tensor([0.0 if group.rank else -0.0])  # equal to `torch.equal`
    group.memory.all_reduce(zeros, mean=True)
    return wrong, str(zeros)


@pytest.mark.parametrize("nproc", [2, 3])
def test_a_sum_is_divided_and_the_mean_of_what_is_equal_is_that_to_the_bit(nproc):
    """A third of the sum of three times a number is not that number, rounded."""
    found = run_ranks(means, nproc)
    assert found == [([], found[0][1])] * nproc


def hurries(group):
    """No pause between calls of all sizes, and each rank is slow in turn."""
    total = 0.0
    for turn in range(600):
        count = COUNTS[turn % 5]
        x = torch.full((count,), float(turn + group.rank), dtype=torch.float64)
        if turn % 50 == 7 * group.rank:
            time.sleep(0.01)
        group.memory.all_reduce(x)
        want = sum(turn + r for r in range(group.size))
        assert bool((x == want).all()), (turn, x[x != want][:3], want)
        total += x[0].item()
    return total


@pytest.mark.parametrize("nproc", [2, 3])
def test_a_fast_rank_does_not_overwrite_what_a_slow_one_reads(nproc):
    assert len(set(run_ranks(hurries, nproc))) == 1


def interrupted(group):
    """A handler raises while this rank waits, and the script goes on."""
    if group.rank == 1:
        time.sleep(5 * LOOK)
        with pytest.raises(dist.DistNetworkError, match=BROKEN):
            group.memory.all_reduce(torch.ones(3))
        return "late"

    def ring(number, frame):
        raise TimeoutError("rings")

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, LOOK)
    with pytest.raises(TimeoutError):
        group.memory.all_reduce(torch.ones(3))
    with pytest.raises(dist.DistNetworkError, match=BROKEN):
        group.memory.all_reduce(torch.ones(3))
    return "told"


def test_after_an_interrupted_wait_nothing_is_read():
    assert run_ranks(interrupted, 2) == ["told", "late"]


def brings_another(group, how):
    """Rank 1 is elsewhere in the program, where a piece has another size."""
    other = {"count": torch.ones(4), "size": torch.ones(3, dtype=torch.float64)}[how]
    x = other if group.rank == 1 else torch.ones(3)
    with pytest.raises(Disagreement, match="bring tensors of different sizes"):
        group.gradient_memory.all_reduce(x, mean=True)
    return "told"


@pytest.mark.parametrize("how", ["count", "size"])
def test_pieces_of_different_sizes_are_not_added_up(how):
    assert run_ranks(brings_another, 3, how) == ["told"] * 3


@pytest.mark.parametrize("count", [4, SLOT], ids=["small", "in pieces"])
@pytest.mark.parametrize("meeting", [1, 2, 3])
def test_a_rank_that_is_killed_at_a_meeting_is_missed_by_all(meeting, count, tmp_path):
    """Each rank is a process; nothing of theirs stays in /dev/shm."""
    before = _shared()
    children, pairs = [], [socket.socketpair() for _ in range(2)]
    for rank in range(3):
        child = os.fork()
        if not child:
            with suppress(BaseException):
                (tmp_path / str(rank)).write_text(survives(rank, pairs, meeting, count))
            os._exit(0)
        children.append(child)
    for end in itertools.chain(*pairs):
        end.close()
    ends = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert ends == [0, -signal.SIGKILL, 0]
    told = [(tmp_path / str(rank)).read_text() for rank in (0, 2)]
    assert told == [BROKEN] * 2
    assert _shared() <= before


def _shared():
    """What lies in /dev/shm, but for what jobs beside this one have of Python's and of torch's."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith(("sem.mp-", "torch_"))}


def survives(rank, pairs, meeting, count):
    """The error that a rank gets; rank 1 does not come to one of its waits."""
    ends = {0: pairs[rank - 1][1]} if rank else {1: pairs[0][0], 2: pairs[1][0]}
    for end in itertools.chain(*pairs):
        if end not in ends.values():
            end.close()
    lines = Lines({other: Line(other, end) for other, end in ends.items()})
    memory, came = shared(rank, 3, lines, lines), 0
    wait = memory.barrier.wait

    def counted():
        nonlocal came
        came += 1
        if rank == 1 and came == meeting:
            os.kill(os.getpid(), signal.SIGKILL)
        wait()

    memory.barrier.wait = counted
    try:
        for _ in range(4):
            memory.all_reduce(torch.ones(count))
    except dist.DistNetworkError as error:
        return str(error)
    return "nothing"
