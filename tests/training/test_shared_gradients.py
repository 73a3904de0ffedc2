"""Gradients go by the memory of the node, and are those of one process."""

from __future__ import annotations

import functools

import pytest
from torch import nn

from tests.support.training import (
    TWO_OR_THREE,
    assert_same,
    batches,
    mlp,
    on_ranks,
    sgd,
    train,
    weights,
)


def counted(group):
    """Count what the memory for gradients is asked to add up, in elements."""
    memory, counts = group and group.gradient_memory, []

    def counting(reduce):
        def counted(x, mean=False):
            counts.append(x.numel())
            reduce(x, mean)

        return counted

    if memory is not None:
        memory.all_reduce = counting(memory.all_reduce)
    return counts


def trains(run, size=8, width=5):
    counts = counted(run.group)
    model = nn.Sequential(nn.Linear(5, width), nn.ReLU(), mlp(width))
    losses = train(model, batches(6, size), 2, sgd(model, 0.05, momentum=0.9))
    total = sum(p.numel() for p in model.parameters())
    return (weights(model), losses), counts, total


# of fewer rows than ranks, and of more bytes than a slot of the memory has
CASES = {"two rows": (2, 5), "large": (4, 30_000)}


@functools.cache
def ran(case, nproc, nodes=()):
    size, width = CASES[case]
    return on_ranks(functools.partial(trains, size=size, width=width), nproc, nodes=nodes)


@TWO_OR_THREE
@pytest.mark.parametrize("case", CASES)
def test_they_are_those_of_one_process(case, nproc):
    ((alone, _, _),) = ran(case, 1)
    backwards = 2 * -(-6 // CASES[case][0])
    ranks = ran(case, nproc)
    for seen, counts, total in ranks:
        assert_same(alone, seen)
        assert_same(ranks[0][0], seen, close=0)
        assert sum(counts) == backwards * total
        assert (len(counts) > backwards) == (case == "large")  # more than one bucket


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [(0, 0, 1, 1), (0, 1, 1)], ids=str)
def test_on_two_nodes_they_go_by_gloo_and_are_those_of_one_process(nodes):
    ((alone, _, _),) = ran("large", 1)
    for seen, counts, _ in ran("large", len(nodes), nodes):
        assert_same(alone, seen)
        assert not counts
