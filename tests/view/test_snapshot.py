"""What a forward leaves behind in Python is seen, named and put back, wherever it is."""

from __future__ import annotations

from collections import deque

import pytest
import torch
from torch import nn

from autoddp.view.snapshot import Snapshot

number, text, tensor, held, table = 0, "a", torch.zeros(2), [1, [2]], {"n": 0}


class Meter:
    def __init__(self):
        self.n, self.parts = 0, [0]


meter = Meter()


class Net(nn.Module):
    kept, listed = 0, [0]

    def __init__(self):
        super().__init__()
        self.calls, self.log, self.meter, self.names = 0, deque([1]), Meter(), {"a"}
        self.register_buffer("count", torch.zeros(1))
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, act):
        act(self)


def around():
    inside = 0

    class Inner(Net):
        def forward(self, act):
            nonlocal inside
            inside += 1

    return Inner, lambda: inside


def changes_globals(net):
    global number, text, tensor
    number, text, tensor = 1, "b", torch.ones(2)


def makes_a_global(net):
    global made
    made = torch.ones(1)


CHANGES = {
    "several globals": (changes_globals, "it changes the global number"),
    "a new global": (makes_a_global, "it changes the global made"),
    "a global's memory": (lambda net: tensor.add_(1), "it changes tensor"),
    "a global's list": (lambda net: held[1].append(3), "it changes the list held"),
    "a global's dict": (lambda net: table.update(n=1), "it leaves n on table"),
    "an object": (lambda net: setattr(meter, "n", 1), "it leaves n on meter"),
    "a class": (lambda net: setattr(Net, "kept", 1), "it changes Net.kept"),
    "a new name of a class": (lambda net: setattr(Net, "new", 1), "it changes Net.new"),
    "a class's list": (lambda net: Net.listed.append(1), "it changes the list Net.listed"),
    "an attribute": (lambda net: setattr(net, "calls", 1), "it leaves calls on Net"),
    "a new attribute": (lambda net: setattr(net, "last", 1), "it leaves last on Net"),
    "a deque": (lambda net: net.log.append(1), "it changes the list Net.log"),
    "a set": (lambda net: net.names.add("b"), "it changes the set Net.names"),
    "what it holds": (lambda net: net.meter.parts.append(1), "it changes the list Net.meter.parts"),
    "a buffer": (lambda net: net.count.add_(1), "it changes buffer .count"),
}


def state(net):
    """Everything that a change could be seen in."""
    spaces = (globals(), vars(Net), vars(net), vars(net.meter), vars(meter), net._buffers)
    return [{k: str(v) for k, v in space.items() if not k.startswith("__")} for space in spaces]


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_left_behind_is_named_and_put_back(name):
    act, said = CHANGES[name]
    net = Net()
    before = state(net)
    seen = Snapshot(net)
    net(act)
    assert state(net) != before, "the test changes nothing"
    found = seen.put_back()
    assert found is not None
    assert said in found
    assert state(net) == before
    assert seen.put_back() is None


def test_a_variable_of_the_function_around_it():
    kind, inside = around()
    net = kind()
    seen = Snapshot(net)
    net(None)
    assert inside() == 1
    assert seen.put_back() == "it changes inside of the function around it"
    assert inside() == 0


def test_a_forward_that_leaves_nothing_leaves_nothing():
    net = Net()
    seen = Snapshot(net)
    net(lambda net: net.weight * 2 + number)
    assert seen.put_back() is None
