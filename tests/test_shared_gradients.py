"""Gradients go by the memory of the node, and are those of one process."""

from __future__ import annotations

import functools

import pytest
from torch import nn

from tests.training import TWO_OR_THREE, assert_same, batches, mlp, on_ranks, sgd, train, weights


def counted(group):
    """Count what the memory for gradients is asked to add up, in elements."""
    memory, counts = group and group.gradient_memory, []
    if memory is not None:
        reduce = memory.all_reduce

        def all_reduce(x, op, share=1):
            counts.append((x.numel(), share))
            reduce(x, op, share)

        memory.all_reduce = all_reduce
    return counts


def trains(run, size=8, width=5):
    counts = counted(run.group)
    model = nn.Sequential(nn.Linear(5, width), nn.ReLU(), mlp(width))
    losses = train(model, batches(6, size), 2, sgd(model, 0.05, momentum=0.9))
    total = sum(p.numel() for p in model.parameters())
    return (weights(model), losses), counts, total


# of one row, of which ranks have none; of fewer than ranks; and of more bytes than a slot has
CASES = {"one row": (1, 5), "two rows": (2, 5), "large": (4, 30_000)}


@functools.cache
def ran(case, nproc):
    return on_ranks(functools.partial(trains, size=CASES[case][0], width=CASES[case][1]), nproc)


@TWO_OR_THREE
@pytest.mark.parametrize("case", CASES)
def test_they_are_those_of_one_process(case, nproc):
    ((alone, none, _),) = ran(case, 1)
    assert none == []
    for seen, counts, total in ran(case, nproc):
        assert_same(alone, seen)
        backwards = 2 * -(-6 // CASES[case][0])
        assert sum(count for count, _ in counts) == backwards * total
        assert {share for _, share in counts} == {nproc}
