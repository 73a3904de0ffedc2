"""Another shape in place, where the memory stays what it is."""

from typing import Any

import torch

from autoddp.view.sharded_tensor import full, is_sharded
from tests.support.ranks import run_ranks
from tests.view.compare import Counting, by_rows


def _resized(group: Any) -> list[Any]:
    view = Counting(group)
    x = torch.arange(12.0).view(4, 3)
    rows = by_rows(x, view.even_sizes(4))
    column = (rows * rows).sum(1).resize_(4, 1)
    merged = (rows * 1).resize_(12)
    again = (rows * 1).resize_((4, 3, 1))
    kept = [is_sharded(one) for one in (column, merged, again)]
    expected = [(x * x).sum(1).view(4, 1), x.view(12), x.view(4, 3, 1)]
    same = [torch.equal(full(a), b) for a, b in zip((column, merged, again), expected, strict=True)]
    return [kept, same, column.expand(4, 4).sum().item(), (merged * 2).sum().item()]


def test_resize_to_as_many_elements_keeps_the_rows():
    x = torch.arange(12.0).view(4, 3)
    column = (x * x).sum(1, keepdim=True)
    expected = [[True] * 3, [True] * 3, column.expand(4, 4).sum().item(), (x * 2).sum().item()]
    for found in run_ranks(_resized, 3):
        assert found == expected
