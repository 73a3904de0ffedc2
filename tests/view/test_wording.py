"""An error on rows takes the words that it has on the whole, and no others."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from autoddp.view.error_messages import reword


def raising(error):
    def again():
        torch.rand(3)
        raise error

    return again


@pytest.mark.parametrize(
    ("error", "told", "words"),
    [
        (RuntimeError("(5x5 and 6x8)"), RuntimeError("(10x5 and 6x8)"), "(10x5 and 6x8)"),
        (ValueError("[4, -1]"), ValueError("[4, 16]"), "[4, 16]"),
        (RuntimeError("5 rows"), RuntimeError("5 columns"), "5 rows"),
        (RuntimeError("5 rows"), ValueError("10 rows"), "5 rows"),
        (torch.OutOfMemoryError("5 GB"), torch.OutOfMemoryError("10 GB"), "5 GB"),
        (dist.DistNetworkError("rank 1"), dist.DistNetworkError("rank 2"), "rank 1"),
    ],
)
def test_words_that_differ_by_numbers_alone_are_taken(error, told, words):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    reword(error, raising(told), (), {})
    assert str(error) == words
    assert torch.equal(torch.get_rng_state(), before)


def test_a_call_that_raises_nothing_tells_nothing():
    error = RuntimeError("5 rows")
    reword(error, lambda: None, (), {})
    assert str(error) == "5 rows"
