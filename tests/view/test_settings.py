"""What a forward may go by: found in users' own objects, which are asked for nothing they lack."""

from argparse import Namespace
from dataclasses import dataclass

from torch import Tensor, nn

from autoddp.view.proof.settings import Settings


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
