"""The count of ignored targets, made when a batch is fetched, holds only for what was counted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from autoddp.view.rules.losses import counted
from tests.support.ranks import run_ranks
from tests.view.compare import Counting, by_rows, difference


def ignoring(y: Tensor, at: Any) -> Tensor:
    y[at] = -100
    return y


LABELS: dict[str, Callable[[Tensor], Tensor]] = {
    "as fetched": lambda y: y,
    "copy": lambda y: y.clone(),
    "masked copy": lambda y: ignoring(y.clone(), y == 0),
    "column of a copy": lambda y: ignoring(y.clone(), (slice(None), 0)),
    "filled copy": lambda y: y.clone().masked_fill_(y == 1, -100),
    "cast": lambda y: ignoring(y.to(torch.int64, copy=True), y == 0),
    "there and back": lambda y: ignoring(y.int().long(), y == 0),
    "reshaped copy": lambda y: ignoring(y.reshape(-1), slice(None, None, 2)).view(7, 5),
    "flat": lambda y: ignoring(y.contiguous().view(-1), slice(None, None, 2)).view(7, 5),
    "masked itself": lambda y: ignoring(y, y == 2),
    "copy of what was masked": lambda y: ignoring(y, y == 2).clone(),
    "original of a masked copy": lambda y: (ignoring(y.clone(), y == 2), y)[1],
}


def _losses(group: Any, kind: str, in_advance: bool) -> str | None:
    torch.manual_seed(0)
    scores, labels = torch.randn(7, 4, 5, dtype=torch.float64), torch.randint(0, 4, (5, 7)).t()
    labels[2] = -100
    view = Counting(group)
    cuts = view.even_sizes(7)
    rows = counted(by_rows(labels, cuts), int((labels == -100).sum()) if in_advance else None)
    want = F.cross_entropy(scores, LABELS[kind](labels.clone()))
    return difference(want, F.cross_entropy(by_rows(scores, cuts), LABELS[kind](rows)))


@pytest.mark.parametrize("kind", LABELS)
def test_targets_changed_after_the_fetch_are_counted_anew(kind):
    for in_advance in (False, True):
        assert run_ranks(_losses, 2, kind, in_advance) == [None, None]
