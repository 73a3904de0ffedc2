"""Ranks of several nodes, which share memory on each: the same bits on all, and an end all see."""

from __future__ import annotations

import errno
import functools
import hashlib
import multiprocessing
import os
import signal
import time

import pytest
import torch
import torch.distributed as dist

from autoddp.comm import node_memory, nodes_memory
from autoddp.comm.group import MAX, SUM
from autoddp.comm.node_barrier import LOOK
from autoddp.comm.node_memory import OPERATIONS, SLOT, SMALL, NodeMemory
from autoddp.comm.nodes_memory import NodesMemory
from autoddp.errors import Disagreement
from tests.comm.test_node_memory import KINDS, made, without
from tests.support.ranks import _rank, run_ranks
from tests.support.training import on_ranks

COUNTS = (1, 7, SMALL // 4 + 3, SLOT // 8 + 1, 3 * SLOT // 4 + 5)
# the node of each rank: also of one rank, and ranks that are not in the order of their nodes
PLACES = {"2+2": (0, 0, 1, 1), "2+1": (0, 0, 1), "3+2": (0, 0, 0, 1, 1), "mixed": (1, 0, 1, 0)}
ON_NODES = pytest.mark.parametrize(
    "nodes",
    [pytest.param(nodes, id=name, marks=pytest.mark.slow) for name, nodes in PLACES.items()],
)
SOON = 20.0  # seconds, which a busy machine may take


def on_nodes(fn, nodes, *args):
    return run_ranks(fn, len(nodes), *args, nodes=nodes)


def joined(parts, join):
    whole = parts[0].clone()
    for part in parts[1:]:
        whole = join(whole, part)
    return whole


def reduces(group, nodes):
    """Sums whose bits depend on the order; of two nodes' sums there is but one."""
    wrong = []
    for dtype in KINDS:
        for count in COUNTS:
            parts = [made(dtype, count, rank) for rank in range(group.size)]
            for op, join in OPERATIONS.items():
                each = [
                    joined(
                        [p for p, place in zip(parts, nodes, strict=True) if place == node], join
                    )
                    for node in (0, 1)
                ]
                x = parts[group.rank].clone()
                group.memory.all_reduce(x, op)
                if not torch.equal(x, joined(each, join)):
                    wrong.append((str(dtype), count, str(op)))
    return wrong


@ON_NODES
def test_sums_are_taken_in_the_order_of_ranks_and_nodes(nodes):
    assert on_nodes(reduces, nodes, nodes) == [[]] * len(nodes)


def bits(group, nodes):
    found, same = hashlib.sha256(), []
    for count in COUNTS:
        parts = [made(torch.float64, count, rank) for rank in range(group.size)]
        x, mean = parts[group.rank].clone(), parts[group.rank].clone()
        group.memory.all_reduce(x, SUM)
        group.gradient_memory.all_reduce(mean, SUM, share=group.size)
        same += [torch.equal(mean, x / group.size), torch.allclose(x, sum(parts))]
        found.update(x.numpy().tobytes())
    return found.hexdigest(), all(same)


@pytest.mark.slow
def test_sums_over_three_nodes_have_one_set_of_bits():
    nodes = (0, 0, 1, 2, 2, 1)
    ((_, right),) = set(on_nodes(bits, nodes, nodes))
    assert right


def gathers(group):
    wrong = []
    for count in (*COUNTS, 2 * SLOT + 9):
        rows = [(made(torch.float64, count, r) * 2).to(torch.uint8) for r in range(group.size)]
        out = torch.empty(group.size, count, dtype=torch.uint8)
        group.memory.all_gather(out, rows[group.rank])
        if not torch.equal(out, torch.stack(rows)):
            wrong.append(count)
    return wrong


@ON_NODES
def test_what_is_gathered_is_the_others(nodes):
    assert on_nodes(gathers, nodes) == [[]] * len(nodes)


def collectives(group):
    """By the group's own, small ones and large ones."""
    found = [type(group.memory), group.collective_check.memory]
    for count in (3, SLOT):
        x = torch.full((count,), group.rank + 1.0)
        found.append(group.all_gather(x)[:, -1].tolist())
        parts = [[torch.full((count,), float(group.rank == r))] for r in range(group.size)]
        group.broadcast(parts)
        found.append([part[-1].item() for (part,) in parts])
        found += [group.all_reduce(x.clone())[-1].item(), group.all_reduce(x, MAX)[0].item()]
        z = torch.full((count,), 1j * (group.rank + 1))
        found.append(group.all_reduce(z)[-1].item())
    return found


@ON_NODES
def test_a_group_talks_by_it(nodes):
    ranks = [1.0 + rank for rank in range(len(nodes))]
    each = [ranks, [1.0] * len(nodes), sum(ranks), max(ranks), 1j * sum(ranks)]
    assert on_nodes(collectives, nodes) == [[NodesMemory, None, *each, *each]] * len(nodes)


def test_ranks_that_are_alone_on_their_nodes_talk_by_gloo():
    assert on_nodes(without, (0, 1)) == [(True, True, 3.0)] * 2


def hurries(group):
    """No pause between calls of all sizes and kinds, and each rank is slow in turn."""
    for turn in range(150):
        x = torch.full((COUNTS[turn % 4],), float(turn + group.rank), dtype=torch.float64)
        if turn % 20 == 3 * group.rank:
            time.sleep(0.01)
        group.memory.all_reduce(x, SUM)
        assert bool((x == 4 * turn + 6).all()), (turn, x[:3])
        row = torch.full((COUNTS[(turn + 1) % 4],), group.rank, dtype=torch.uint8)
        group.memory.all_gather(out := row.new_empty(4, len(row)), row)
        assert bool((out == torch.arange(4)[:, None]).all()), (turn, out[:, :3])
    return "through"


@pytest.mark.slow
def test_a_fast_rank_does_not_overwrite_what_a_slow_one_reads():
    assert on_nodes(hurries, PLACES["2+2"]) == ["through"] * 4


# ---- where it cannot be had


def unshared(run):
    lines = [line.what for line in run.report.of("memory")]
    x = torch.full((SLOT,), run.world.rank + 1.0)
    return lines, run.group.memory is None, run.group.all_reduce(x)[-1].item()


FULL = os.strerror(errno.ENOMEM)


def full_on(monkeypatch, node):
    plain = node_memory.nameless

    def nameless(count):
        if nodes_memory.namespace() == node:
            raise OSError(errno.ENOMEM, FULL)
        return plain(count)

    monkeypatch.setattr(node_memory, "nameless", nameless)


@pytest.mark.slow
def test_without_room_on_a_node_all_ranks_talk_by_gloo_and_it_is_said(monkeypatch):
    full_on(monkeypatch, "1")
    line = "the ranks of a machine talk by gloo, which takes longer than shared memory"
    line += f" (rank 2: {FULL})"
    assert on_ranks(unshared, 4, nodes=PLACES["2+2"]) == [([line], True, 10.0)] * 4


def test_without_what_it_takes_ranks_talk_by_gloo_and_it_is_said(monkeypatch):
    monkeypatch.setattr(nodes_memory, "supported", lambda: False)
    for lines, none, total in on_ranks(unshared, 2):
        assert (none, total) == (True, 3.0)
        assert "(rank 0: its system lacks memfd_create or sem_clockwait)" in lines[0]


def test_where_it_is_shared_nothing_is_said():
    assert on_ranks(unshared, 2) == [([], False, 3.0)] * 2


# ---- ranks that end, or part


def dies(group, victim, moment, folder):
    """What a rank is told; it stays until all that live have been told, so by nobody's end."""
    memory, meet, gloo, came = group.memory, NodeMemory.meet, NodesMemory._gloo, 0

    def strike(kind):
        nonlocal came
        came += kind == moment[0]
        if group.rank == victim and (kind, came) == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    NodeMemory.meet = lambda self: strike("meeting") or meet(self)
    NodesMemory._gloo = lambda self: strike("gloo") or gloo(self)
    began = time.monotonic()
    try:
        for _ in range(2):
            memory.start_all_reduce(torch.ones(SLOT), SUM)
            memory.all_reduce(torch.ones(SLOT), SUM)
        said = "nothing"
    except RuntimeError as error:
        lost = isinstance(error, dist.DistError) or "/gloo/transport/" in str(error)
        said = f"{'lost' if lost else error}, {'soon' if time.monotonic() - began < SOON else ''}"
    (folder / str(group.rank)).write_text(said)
    while len(list(folder.iterdir())) < group.size - 1 and time.monotonic() - began < SOON:
        time.sleep(LOOK)
    os._exit(0)


# of the four pieces of a large all-reduce: two ranks meet once over each, and once to tell it
MOMENTS = [("meeting", number) for number in (1, 2, 5, 10, 17)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "moment"),
    [(v, m) for m in MOMENTS for v in (1, 2)] + [(0, ("gloo", 1)), (2, ("gloo", 6))],
    ids=str,
)
def test_a_rank_that_is_killed_is_missed_on_all_nodes(victim, moment, tmp_path):
    (tmp_path / "told").mkdir()
    act = functools.partial(dies, victim=victim, moment=moment, folder=tmp_path / "told")
    context, nodes = multiprocessing.get_context("fork"), PLACES["2+2"]
    ranks = [
        context.Process(target=_rank, args=(act, r, 4, str(tmp_path / "store"), (), None, nodes))
        for r in range(4)
    ]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join(3 * SOON)
    assert [one.exitcode for one in ranks] == [-signal.SIGKILL * (r == victim) for r in range(4)]
    told = {int(path.name): path.read_text() for path in (tmp_path / "told").iterdir()}
    assert told == {rank: "lost, soon" for rank in range(4) if rank != victim}


def leaves(group):
    """Rank 3 leaves, and comes back: the others are told, and so is it."""
    if group.rank == 3:
        group.memory.leave()
    found = []
    for _ in range(2):
        with pytest.raises(RuntimeError) as error:
            group.memory.all_reduce(torch.ones(3), SUM)
        found.append(isinstance(error.value, dist.DistError) or "gloo" in str(error.value))
        del error
    group.gradient_memory.all_reduce(x := torch.ones(3), SUM)
    return found, x.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [PLACES["2+2"], (0, 0, 0, 1)], ids=str)
def test_a_rank_that_leaves_is_missed_on_all_nodes(nodes):
    assert on_nodes(leaves, nodes) == [([True, True], [4.0] * 3)] * 4


def brings_another(group):
    x = torch.ones(4 if group.rank == 3 else 3)
    with pytest.raises((Disagreement, RuntimeError)) as error:
        group.gradient_memory.all_reduce(x, SUM)
    return isinstance(error.value, Disagreement)


@pytest.mark.slow
def test_a_rank_that_is_elsewhere_is_told_on_its_node():
    assert on_nodes(brings_another, PLACES["2+2"]) == [False, False, True, True]
