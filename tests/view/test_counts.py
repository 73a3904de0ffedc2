"""A decision by how many rows there are is that of the whole batch."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autoddp.view.cuts import Cuts
from autoddp.view.proof.counts import Asked, NotedSize, decided
from tests.support.ranks import run_ranks
from tests.view.compare import by_rows, difference
from tests.view.test_rows import installed
from tests.view.test_trials import said_of

WAYS = {
    "more": lambda x, h: x.size(0) > 5,
    "length": lambda x, h: len(x) > 5,
    "of a result": lambda x, h: h.shape[0] * 4 >= 24,
    "odd": lambda x, h: x.shape[0] % 2 == 1,
    "half": lambda x, h: x.size(0) // 2 > 2,
    "a float": lambda x, h: x.size(0) > 5.5,
    "just as many": lambda x, h: x.size(0) == 7,
    "the least": lambda x, h: min(x.size(0), 5) == 5,
    "any": lambda x, h: bool(x.size(0) // 6),
    "from behind": lambda x, h: 12 - x.size(0) < 6,
    "numbers": lambda x, h: x.numel() > 20,
    "unpacked": lambda x, h: next(rows for rows, _ in [h.shape]) >= 6,
}
NEVER = {
    "far away": lambda x, h: x.size(0) > 1000,
    "of a row": lambda x, h: x.size(1) > 1000,
    "a shape": lambda x, h: x.shape != h.shape,
    "as many": lambda x, h: len(x) != h.size(0),
    "kept": lambda x, h: None,
}


class Decides(nn.Module):
    """Couples its rows where `way` says so."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.inner, self.way, self.width = nn.Linear(4, 4), way, 4

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(x)
        self.width = min(x.size(1), self.width)  # a size that is kept, as Swin's windows are
        return h - h.mean(0) if (WAYS | NEVER)[self.way](x, h) else h


def losses(net: nn.Module, batches: list[Tensor]) -> list[Tensor]:
    """The losses of some steps."""
    optimizer, found = torch.optim.SGD(net.parameters(), 0.1), []
    for x in batches:
        loss = net(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss)
    return found


SIZES = (7, 7, 5, 3, 9, 14, 20, 2)
SMALL_FIRST = (4, 4, 14, 20, 4, 26, 5, 36)  # large ones go another way, and so do all their parts


def _compared(group: Any, way: str, sizes: tuple[int, ...] = SIZES) -> Any:
    torch.set_default_dtype(torch.float64)
    batches = [torch.randn(rows, 4) for rows in sizes]
    torch.manual_seed(0)
    want = losses(Decides(way), batches)
    with installed(group) as view:
        torch.manual_seed(0)
        net = Decides(way)
        got = losses(net, [by_rows(x, view.cut(len(x))) for x in batches])
        return difference(want, got), said_of(view), type(net.width) is int


@pytest.mark.parametrize("nproc", [2, 3])
@pytest.mark.parametrize("way", WAYS)
def test_a_decision_by_the_number_of_rows_is_that_of_the_whole_batch(way, nproc):
    for differs, said, _ in run_ranks(_compared, nproc, way):
        assert differs is None
        # an odd number couples a rank's rows when they are tried
        assert way == "odd" or "Decides: it decides by how many rows" in "".join(said["whole"])


@pytest.mark.parametrize("way", WAYS)
def test_a_proof_holds_for_the_way_that_was_tried(way):
    for differs, _, _ in run_ranks(_compared, 2, way, SMALL_FIRST):
        assert differs is None


@pytest.mark.parametrize("way", NEVER)
def test_a_decision_that_comes_out_alike_is_no_obstacle(way):
    for differs, said, plain in run_ranks(_compared, 2, way):
        assert differs is None
        assert said["split"][0].startswith("Decides: "), said
        assert plain  # nothing of the trial is left in what the module keeps


def _at_every_size(group: Any) -> Any:
    """Sizes that are decided alike, and not: the first is not, and the proof is made once more."""
    torch.set_default_dtype(torch.float64)
    batches = [torch.randn(rows, 4) for rows in (7, 3, *[7, 3] * 60, 24, 5)]
    torch.manual_seed(0)
    want = losses(Decides("more"), batches)
    with installed(group) as view:
        torch.manual_seed(0)
        net = Decides("more")
        got = losses(net, [by_rows(x, view.cut(len(x))) for x in batches])
        proofs = view.report.decisions.values()
        return difference(want, got), [d.kind for d in proofs if "not any more" in d.what]


def test_one_proof_holds_for_all_sizes_also_where_it_is_made_again():
    assert run_ranks(_at_every_size, 2) == [(None, [])] * 2


def asked(rows: int, forward: Any) -> Asked:
    """What a forward asks of so many rows."""
    found = Asked(rows)
    with found.listening():
        forward(torch.ones(rows, 3))
    return found


def test_a_size_is_an_int_in_all_that_torch_and_python_do_with_it():
    def forward(x: Tensor) -> None:
        rows, width = x.shape
        assert type(rows) is NotedSize
        assert isinstance(rows, int)
        x.view(rows * width), torch.zeros(rows, width), x.narrow(0, 0, rows - 1), x.new_ones(rows)
        torch.full((rows,), rows), torch.tensor([rows]), x[: rows // 2], range(rows), x / rows
        assert f"{rows} {rows:3d}" == "8   8"
        assert {8: 1}[rows] == 1
        assert type(pickle.loads(pickle.dumps(rows))) is int
        assert divmod(rows, 3) == (2, 2)
        assert rows / 2 == 4.0
        assert -rows == -8

    asked(8, forward)
    assert type(torch.ones(3).shape[0]) is int
    assert type(len(torch.ones(3))) is int


def test_what_a_script_has_put_in_the_place_of_size_is_back_afterwards(monkeypatch):
    plain, calls = torch.Tensor.size, []
    monkeypatch.setattr(torch.Tensor, "size", lambda x, *d: calls.append(1) or plain(x, *d))
    own = torch.Tensor.size
    found = asked(8, lambda x: x.size(0) > 3)
    assert (len(found.terms), len(calls)) == (1, 1)
    assert torch.Tensor.size is own
    with pytest.raises(KeyError):
        asked(8, lambda x: {}[x.size(0)])
    assert torch.Tensor.size is own


def test_what_is_asked_outside_of_the_forward_is_not_noted():
    kept: list[int] = []
    found = asked(8, lambda x: kept.append(x.size(0)))
    assert kept[0] > 3
    assert not found.terms
    later = asked(4, lambda x: kept.append(x.size(0) + kept[0]))
    assert kept[1] == 12
    assert not later.terms


def cuts(total: int, *sizes: int) -> Any:
    """Cuts of so many rows."""
    made = object.__new__(Cuts)
    made.total, made.sizes, made.turns = total, sizes, 1
    return made


def test_how_a_size_grows_is_learned_from_two_numbers_of_rows():
    def forward(x: Tensor) -> bool:
        return x.unsqueeze(1).expand(-1, 4, -1).reshape(-1, 3)[2:].size(0) > 50

    found = decided(asked(8, forward), asked(5, forward))
    assert found is not None
    assert found.alike(cuts(13, 7, 6))  # 4 * 13 - 2 is not more
    assert not found.alike(cuts(14, 7, 7))
    assert not found.alike(cuts(40, 20, 20))  # all are more, which was not tried


def test_a_size_that_grows_by_leaps_tells_nothing():
    def forward(x: Tensor) -> bool:
        return x[::2].size(0) > 50

    assert decided(asked(8, forward), asked(5, forward)) is None


def test_forwards_that_ask_for_unlike_things_tell_nothing():
    def forward(x: Tensor) -> list[bool]:
        return [k == x.size(0) - 1 for k in range(len(x))]

    assert decided(asked(8, forward), asked(5, forward)) is None


def test_two_outcomes_tell_nothing():
    assert decided(*(asked(n, lambda x: x.size(0) > 6) for n in (8, 5))) is None


def test_a_division_by_nothing_is_not_alike():
    found = decided(*(asked(n, lambda x: 10 // (x.size(0) - 9) > 1) for n in (8, 5)))
    assert found is not None
    assert not found.alike(cuts(18, 9, 9))
