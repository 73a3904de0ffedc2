"""What a forward may go by: found in users' own objects, which are asked for nothing they lack."""

from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from autoddp.view.proof.settings import Settings
from tests.support.ranks import run_ranks
from tests.view.compare import by_rows, difference
from tests.view.test_rows import installed


class Strict(dict):
    """Settings as in many scripts: what an instance lacks is a KeyError, not an AttributeError."""

    __getattr__ = dict.__getitem__


@dataclass
class Given:
    warm: bool = True


STRICT, GIVEN, NAMED = Strict(scale=2.0), Given(), Namespace(warm=True)


class Net(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * STRICT.scale if GIVEN.warm and NAMED.warm else x


def test_objects_that_know_their_keys_only_are_left_alone():
    net = Net()
    net.hp = STRICT
    assert Settings().of(net) == Settings().of(net)


def test_settings_in_a_dataclass_or_a_namespace_belong_to_the_proof(monkeypatch):
    net, known = Net(), Settings()
    before = known.of(net)
    with monkeypatch.context() as patched:
        patched.setattr(GIVEN, "warm", False)
        assert known.of(net) != before
    with monkeypatch.context() as patched:
        patched.setattr(NAMED, "warm", False)
        assert known.of(net) != before
    assert known.of(net) == before


class Phase(Enum):
    WARM, COLD = 1, 2


class Phased(nn.Module):
    """One that centres its batch if an argument, or an attribute, says so."""

    phase = Phase.WARM

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor, given: Any = None) -> Tensor:
        x = given(x) if callable(given) else x
        return self.inner(x - x.mean(0) if Phase.COLD in (given, self.phase) else x)


def centred(x: Tensor) -> Tensor:
    return x - x.mean(0)


STEERING: dict[str, tuple[Any, Any]] = {
    "members of an Enum": (Phase.WARM, Phase.COLD),
    "functions": (torch.relu, centred),
    "functions of ours": (lambda x: x * 2, lambda x: x - x.mean(0)),
    "modules": (nn.Tanh(), nn.Softmax(0)),
}


def _steered(group: Any) -> list[str]:
    torch.set_default_dtype(torch.float64)
    x, said = torch.randn(12, 4), []

    def run(name: str, batch: Callable[[Tensor], Tensor]) -> list[Tensor]:
        torch.manual_seed(0)
        net, seen = Phased(), []
        if name in STEERING:
            seen = [net(batch(x), given) for given in STEERING[name]]
        for net.phase in Phase:
            seen.append(net(batch(x)))
        return seen

    for name in (*STEERING, "an attribute"):
        want = run(name, lambda x: x)
        with installed(group) as view:
            found = difference(want, run(name, lambda x: by_rows(x, view.cut(12))))
            if found or not view.report.of("split"):
                said.append(f"{name}: {found or 'it is not split'}")
    return said


def test_what_is_no_number_or_text_steers_a_forward_too():
    said = run_ranks(_steered, 2)
    assert not any(said), said


WARM, STEEP = True, False


class Shared:
    first = second = False


class First(nn.Module):
    def __init__(self, shared: Shared) -> None:
        super().__init__()
        self.shared = shared

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if WARM or self.shared.first else x


class Second(First):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if STEEP or self.shared.second else x


def test_parts_that_read_other_names_of_one_file_and_object_belong_to_one_proof(monkeypatch):
    shared, known = Shared(), Settings()
    vars(shared).update(first=False, second=False)
    both = nn.Sequential(First(shared), Second(shared), First(shared))
    before = known.of(both)
    for name in ("WARM", "STEEP"):
        with monkeypatch.context() as patched:
            patched.setitem(globals(), name, None)
            assert known.of(both) != before, name
    for name in ("first", "second"):
        with monkeypatch.context() as patched:
            patched.setattr(shared, name, True)
            assert known.of(both) != before, name
    assert known.of(both) == before
    assert hash(known.of_argument(np.array([{}], object))) == hash(None)
