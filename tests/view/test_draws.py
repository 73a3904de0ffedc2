"""Random draws by rows are those of one process, and so is every generator afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from autoddp.view.draws import Draws
from tests.ranks import run_ranks
from tests.view.compare import Counting, by_rows, difference

DRAWN: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda x: F.dropout(x, 0.4),
    "in a kernel": lambda x: torch.native_dropout(x, 0.4, True)[0],
    "dropout2d": lambda x: F.dropout2d(x, 0.4),
    "alpha": lambda x: F.alpha_dropout(x, 0.4, training=True),
    "features": lambda x: F.feature_alpha_dropout(x, 0.4, training=True),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "normal": lambda x: torch.randn_like(x),
    "uniform": lambda x: torch.rand_like(x),
    "integers": lambda x: torch.randint_like(x, 9),
    "filled": lambda x: x.clone().normal_(),
    "exponential": lambda x: x.clone().exponential_(),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "multinomial": lambda x: torch.multinomial(x.flatten(1).softmax(1), 2),
}
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda x: x,
    "channels last": lambda x: x.to(memory_format=torch.channels_last),
    "transposed": lambda x: x.transpose(2, 3),
}


def _by_rows(group: Any) -> list[str]:
    view, said = Counting(group), []
    for rows in (7, 4):
        for layout, laid in LAYOUTS.items():
            for name, draw in DRAWN.items():
                x = laid(torch.ones(rows, 4, 3, 2) - 0.5)
                torch.manual_seed(5)
                want = draw(x), torch.rand(2)
                torch.manual_seed(5)
                got = draw(by_rows(x, view.cut(rows))), torch.rand(2)
                if found := difference(want, got):
                    said.append(f"{name} of {rows}, {layout}: {found}")
    return said


@pytest.mark.parametrize("nproc", [2, 3])
def test_masks_are_those_of_one_process(nproc):
    said = run_ranks(_by_rows, nproc)
    assert not any(said), said


def _inside(group: Any) -> list[str]:
    """As in a split call: plain rows under the mode."""
    view, said = Counting(group), []
    for layout, laid in LAYOUTS.items():
        for name, draw in DRAWN.items():
            if name in ("rrelu", "bernoulli", "multinomial"):
                continue  # values decide what is drawn: no proof accepts these
            whole = laid(torch.ones(8, 4, 3, 2) - 0.5)
            cuts = view.cut(8)
            torch.manual_seed(5)
            want, after = draw(whole).narrow(0, cuts.start, cuts.mine), torch.rand(2)
            torch.manual_seed(5)
            with Draws.of(cuts, 0):
                got = draw(whole.narrow(0, cuts.start, cuts.mine))
            if found := difference((want, after), (got, torch.rand(2))):
                said.append(f"{name}, {layout}: {found}")
    return said


@pytest.mark.parametrize("nproc", [2, 3])
def test_draws_inside_a_split_call(nproc):
    said = run_ranks(_inside, nproc)
    assert not any(said), said


class Written(TorchDispatchMode):
    """The operators that write as much as the whole batch is."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.names = size, list[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        outs = [x for x in (out if isinstance(out, tuple) else [out]) if isinstance(x, Tensor)]
        if any(x.numel() >= self.size for x in outs):
            self.names.append(func.overloadpacket.__name__)
        return out


def _masked(group: Any) -> list[str]:
    cuts = Counting(group).cut(8)
    with Written(80) as written, Draws.of(cuts, 0):
        torch.native_dropout(torch.ones(cuts.mine, 10), 0.4, True)
    return written.names


def test_a_kernel_is_asked_for_its_mask_alone():
    """Its output for the whole batch comes along, of whatever its input holds, and goes at once."""
    assert run_ranks(_masked, 2) == [["empty_permuted", "native_dropout"]] * 2


def _own(group: Any) -> Any:
    view = Counting(group)
    view.draws = "own"
    torch.manual_seed(5)
    before = torch.get_rng_state()
    with Draws.of(view.cut(6), 0):
        first = F.dropout(torch.ones(view.cut(6).mine, 50))
        second = F.dropout(torch.ones(view.cut(6).mine, 50))
    same = bool(torch.equal(before, torch.get_rng_state()))
    return same, first.flatten().tolist(), second.flatten().tolist()


def test_own_draws_differ_by_rank_and_leave_the_generator():
    (a, first, again), (b, other, _) = run_ranks(_own, 2)
    assert a
    assert b
    assert first != other
    assert first != again
