"""Ranks of several nodes, of which the first of each stands for the others."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import tempfile
import time

import pytest
import torch

from autoddp.comm import collective_check, rpc
from autoddp.comm.rpc import When
from autoddp.errors import Disagreement
from tests.effects.outward import raised
from tests.support.ranks import _rank, run_ranks

pytestmark = pytest.mark.slow

NODES = (0, 0, 1, 1, 1, 2, 2)
LEFT = 0.5


def on_nodes(fn):
    return run_ranks(fn, len(NODES), nodes=NODES)


def test_rank_0_has_a_line_to_each_rank_of_its_node_and_to_the_first_of_each_other():
    def rank(group):
        trees = group.channel.effects, group.channel.meetings
        above = {tree.up.peer if tree.up is not None else None for tree in trees}
        return above, [list(tree.down) for tree in trees], list(group.channel.orders)

    zero, *others = on_nodes(rank)
    assert zero == ({None}, [[1, 2, 5]] * 2, [1, 2, 3, 4, 5, 6])
    assert [above for above, _, _ in others] == [{0}, {0}, {2}, {2}, {0}, {5}]
    assert [below[0] for _, below, _ in others] == [[], [3, 4], [], [], [6], []]
    assert all(orders == [0] for _, _, orders in others)


def test_each_rank_may_act_and_all_have_the_outcome():
    def rank(group):
        body = bytes(range(256)) * 8192

        def fails():
            raise FileNotFoundError(2, "none", f"of {group.rank}")

        return (
            [group.call("who", lambda: group.rank, by=by) for by in range(7)],
            [group.call("bytes", lambda: body, by=by) == body for by in (0, 2, 4)],
            [raised(lambda by=by: group.call("fails", fails, by=by)) for by in (0, 3, 5)],
            group.call("all", lambda: "here", when=When.ALL_HERE),
        )

    errors = [("FileNotFoundError", f"[Errno 2] none: 'of {by}'") for by in (0, 3, 5)]
    assert on_nodes(rank) == [(list(range(7)), [True] * 3, errors, "here")] * 7


def test_an_act_that_waits_for_all_waits_for_ranks_behind_another():
    def rank(group):
        time.sleep(0.4 * (group.rank == 4))
        began = time.monotonic()
        return began, group.call("all", time.monotonic, when=When.ALL_HERE)

    assert all(began <= at for began, at in on_nodes(rank))


def test_sums_have_the_bits_that_one_node_has():
    def rank(group):
        torch.manual_seed(group.rank)
        x = torch.randn(100)
        low = x.to(torch.bfloat16)
        return (
            group.all_reduce(x.clone()).tolist(),
            group.all_reduce(low.clone()).tolist(),
            group.all_gather(x).tolist(),
            group.all_bytes(bytes([group.rank]) * (group.rank + 1)),
        )

    several, one = on_nodes(rank), run_ranks(rank, len(NODES))
    assert several == one
    assert several[0] == several[6]


@pytest.mark.parametrize("astray", [2, 4, 6])
def test_a_rank_elsewhere_is_told_which(astray):
    def rank(group):
        site = "there" if group.rank == astray else "here"
        return raised(lambda: group.call(site, lambda: 1, when=When.ALL_HERE))

    def alone(group):
        found = rank(group)
        if group.rank not in (0, astray):
            os._exit(0)  # they wait for the end of the job
        return found

    assert ended(alone)[0][1].startswith(f"rank 0 is at «here» where rank {astray} is at «there»")


@pytest.mark.parametrize("astray", [2, 4, 6])
def test_a_rank_in_another_collective_is_told_on_all(astray):
    def rank(group):
        act = group.all_gather if group.rank == astray else group.all_reduce
        with pytest.raises(Disagreement) as error:
            act(torch.ones(3))
        return str(error.value)

    (said,) = set(on_nodes(rank))
    assert f"rank {astray} is in «all-gather of float32[3] at test_tree.py" in said
    assert "where rank 0 is in «all-reduce of float32[3] at test_tree.py" in said


@pytest.mark.parametrize("astray", [2, 4])
def test_what_a_rank_has_passed_by_is_compared(astray):
    def rank(group):
        group.collective_check.pass_by(f"0 backward {group.rank == astray}")
        with pytest.raises(Disagreement) as error:
            group.all_reduce(torch.ones(1))
        return str(error.value)

    (said,) = set(on_nodes(rank))
    assert f"rank {astray} is in «backward True» where rank 0 is in «backward False»" in said


def test_the_thread_that_watches_the_first_of_a_node_sees_who_is_elsewhere():
    """Rank 0 cannot: its node's answers come together, and the first one's never does."""

    def rank(group):
        if group.rank == 4:
            return raised(lambda: group.all_reduce(torch.ones(1)))
        if group.rank == 2:
            group.collective_check.pass_by("0 backward")
            end = time.monotonic() + 30
            while time.monotonic() < end:
                said = raised(group.collective_check.look)
                if said[0]:
                    return said
                time.sleep(0.01)
        return None

    found = on_nodes(rank)
    assert found[2] == found[4]
    assert "rank 4 is in «all-reduce of float32[1] at test_tree.py" in found[2][1]
    assert "where rank 2 is in «backward»" in found[2][1]


def program(group, seed):
    """Calls and collectives in one order, at each rank's own pace."""
    steps, pace, seen = random.Random(seed), random.Random(group.rank + 100 * seed), []
    for n in range(150):
        if pace.random() < 0.1:
            time.sleep(pace.random() * 0.02)
        size, kind = steps.choice((1, 100, 300_000)), steps.randrange(6)
        if kind == 0:
            seen.append(group.call(f"a{n}", lambda n=n: n, when=When.ALL_HERE))
        elif kind == 1:
            seen.append(group.call(f"b{n}", lambda: group.rank, by=steps.randrange(7)))
        elif kind == 2:
            seen.append(group.all_reduce(torch.tensor([group.rank])).item())
        elif kind == 3:
            seen.append(group.all_gather(torch.full((2000,), group.rank)).sum().item())
        else:
            seen.append(len(group.call(f"c{n}", lambda size=size: b"x" * size)))
    return seen


@pytest.mark.parametrize("seed", range(3))
def test_nobody_waits_for_ever_whatever_the_order_and_the_pace(seed):
    (found,) = {tuple(seen) for seen in on_nodes(lambda group: program(group, seed))}
    assert len(found) == 150


def ended(act, patience=60):
    """What `act(group)` returns on each rank that comes to its end, None for the others."""
    context = multiprocessing.get_context("fork")
    with multiprocessing.Manager() as manager, tempfile.TemporaryDirectory() as folder:
        found, path = manager.dict(), f"{folder}/store"

        def rank(group):
            collective_check.LEFT = rpc.LEFT = LEFT  # no launcher ends them
            found[group.rank] = act(group)
            time.sleep(2)  # the others hear of what this one has heard of, not of its end
            os._exit(0)

        ranks = [
            context.Process(target=_rank, args=(rank, r, len(NODES), path, (), None, NODES))
            for r in range(len(NODES))
        ]
        for one in ranks:
            one.start()
        for one in ranks:
            one.join(patience)
            assert one.exitcode is not None, "a rank hangs"
        return dict(found)


@pytest.mark.parametrize("lost", [2, 4])
@pytest.mark.parametrize("what", ["collective", "meeting", "acting"])
def test_a_rank_that_was_killed_is_named(what, lost):
    acts = {
        "collective": lambda group: group.all_reduce(torch.ones(1)),
        "meeting": lambda group: group.call("a", lambda: 1, when=When.ALL_HERE),
        "acting": lambda group: group.call("a", lambda: 1, by=lost),
    }

    def act(group):
        group.call("before", lambda: 1, when=When.ALL_HERE)
        if group.rank == lost:
            os.kill(os.getpid(), signal.SIGKILL)
        began = time.monotonic()
        return *raised(lambda: acts[what](group)), time.monotonic() - began

    found = ended(act)
    kind, said, _ = found[0]
    assert kind == "RankEnded"
    assert said.startswith(f"rank {lost} has ended")
    if lost == 2:  # those beside it leave it to its launcher to say so first
        _, said, took = found[3]
        assert said.startswith("rank 2 has ended")
        assert took >= LEFT
