"""What is marked as rowwise is computed on local rows, and refused where that shows to be wrong."""

from __future__ import annotations

import pytest
import torch

import autoddp
from autoddp.errors import BadInput
from autoddp.training.rowwise import KNOWN
from autoddp.view import ShardedTensor
from tests.support.training import batches, on_ranks


def marked(function, wanted):
    """Return what a marked function answers for a batch of the loader, and what it was given."""
    seen = []

    @autoddp.rowwise
    def run(x):
        seen.append(tuple(x.shape))
        return function(x)

    x, _ = next(iter(batches()))
    try:
        out = run(x)
    except BadInput as error:
        return str(error)
    return type(out) is ShardedTensor, seen[0], torch.equal(out, wanted(x))


@pytest.mark.parametrize("nproc", [2, 3])
def test_a_marked_function_sees_local_rows(nproc):
    found = on_ranks(lambda: marked(torch.exp, torch.exp), nproc)
    assert all(sharded and equal for sharded, _, equal in found)
    assert sum(shape[0] for _, shape, _ in found) == 8


def test_in_one_process_it_sees_the_batch():
    assert on_ranks(lambda: marked(torch.exp, torch.exp), 1) == [(False, (8, 5), True)]


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x: x.sum(), "of 4 rows it returns the shape ()"),
        (lambda x: x.t(), "of 4 rows it returns the shape (5, 4)"),
        (lambda x: x + torch.rand(4, 5), "draws random numbers"),
    ],
)
def test_what_is_not_rowwise_is_refused(function, said):
    assert all(said in found for found in on_ranks(lambda: marked(function, torch.exp)))


def test_each_name_of_the_table_is_well_formed():
    for name in KNOWN:
        module, _, path = name.partition(":")
        assert module.split(".")[0].isidentifier()
        assert path.isidentifier()
