"""What a forward leaves behind in Python is seen, named and put back, wherever it is."""

from __future__ import annotations

import argparse
import array
import functools
import importlib
import io
import itertools
import random
import sys
import textwrap
import threading
from collections import UserDict, UserList, deque
from queue import Queue
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from autoddp.training.sharing.snapshot import Snapshot

number, text, tensor, held, table = 0, "a", torch.zeros(2), [1, [2]], {"n": 0}
local = threading.local()
local.n = 0


class Listed(list):
    n = 0


class Slotted:
    __slots__ = ("__own", "n", "parts")

    def __init__(self):
        self.n, self.parts, self.__own = 0, [0], 0

    def count(self):
        self.__own += 1

    def __repr__(self):
        return f"{getattr(self, 'n', None)} {self.parts} {self.__own}"


slotted, listed = Slotted(), Listed([1])


def noted(log=[], *, more={}):  # noqa: B006  # what is tested
    return log, more


noted.n = 0


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
        self.objects = (local, slotted, listed)
        self.calls_it = noted

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
    "a buffer's data": (lambda net: net.count.data.add_(1), "it changes buffer .count"),
    "a buffer in numpy": (lambda net: net.count.numpy().fill(1), "buffer .count"),
    "a slot": (lambda net: setattr(slotted, "n", 1), "it leaves n on slotted"),
    "a slot that goes": (lambda net: delattr(slotted, "n"), "it leaves n on slotted"),
    "a private slot": (lambda net: slotted.count(), "it leaves _Slotted__own on slotted"),
    "a list in a slot": (lambda net: slotted.parts.append(1), "it changes the list slotted.parts"),
    "a list's attribute": (lambda net: setattr(listed, "n", 1), "it leaves n on listed"),
    "a thread's own": (lambda net: setattr(local, "n", 1), "it leaves n on local"),
    "a function's": (lambda net: setattr(noted, "n", 1), "it leaves n on noted"),
    "a default": (lambda net: noted()[0].append(1), "it changes the list a default of noted"),
    "a named default": (lambda net: noted()[1].update(n=1), "it leaves n on a default of noted"),
    "a parameter's": (lambda net: setattr(net.weight, "n", 1), "it leaves n on parameter .weight"),
    "other data": (lambda net: setattr(net.count, "data", torch.ones(3)), "buffer .count"),
}


def state(net):
    """Everything that a change could be seen in."""
    spaces = (globals(), vars(Net), vars(net), vars(net.meter), vars(meter), net._buffers)
    spaces += (vars(listed), vars(local), vars(noted), vars(net.weight), {"noted": noted()})
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


class Holds(nn.Module):
    """All that keeps its state in no attribute."""

    def __init__(self):
        super().__init__()
        self.array, self.bytes, self.numbers = np.zeros(3), bytearray(2), array.array("i", [0])
        self.column, self.system = np.zeros((3, 2))[:, 0], random.SystemRandom()
        self.objects = np.array([1, None], dtype=object)
        self.python, self.old, self.new = (
            random.Random(1),
            np.random.RandomState(1),
            np.random.default_rng(1),
        )
        self.bits, self.torch = np.random.MT19937(1), torch.Generator().manual_seed(1)
        self.space, self.given = SimpleNamespace(n=0), argparse.Namespace(n=0)
        self.text, self.file, self.queue = io.StringIO("a"), io.BytesIO(b"a"), Queue()
        self.sequence, self.mapping, self.closed = UserList(), UserDict(), io.StringIO()
        self.text.read(), self.closed.close()


OPAQUE = {
    "column": (lambda net: net.column.__setitem__(1, 5), lambda net: net.column.tolist()),
    "array": (lambda net: net.array.__setitem__(1, 5), lambda net: net.array.tolist()),
    "objects": (lambda net: net.objects.__setitem__(1, 5), lambda net: net.objects.tolist()),
    "bytes": (lambda net: net.bytes.append(5), lambda net: bytes(net.bytes)),
    "numbers": (lambda net: net.numbers.append(5), lambda net: list(net.numbers)),
    "python": (lambda net: net.python.random(), lambda net: net.python.getstate()),
    "old": (lambda net: net.old.rand(), lambda net: str(net.old.get_state())),
    "new": (lambda net: net.new.random(), lambda net: str(net.new.bit_generator.state)),
    "bits": (lambda net: net.bits.random_raw(), lambda net: str(net.bits.state)),
    "torch": (
        lambda net: torch.rand(1, generator=net.torch),
        lambda net: net.torch.get_state().tolist(),
    ),
    "space": (lambda net: setattr(net.space, "n", 1), lambda net: net.space.n),
    "text": (lambda net: print("b", file=net.text), lambda net: net.text.getvalue()),
    "file": (lambda net: net.file.read(), lambda net: net.file.tell()),
    "queue": (lambda net: net.queue.put(1), lambda net: net.queue.qsize()),
    "sequence": (lambda net: net.sequence.append(1), lambda net: list(net.sequence)),
    "mapping": (lambda net: net.mapping.update(n=1), lambda net: dict(net.mapping)),
    "given": (lambda net: setattr(net.given, "n", 1), lambda net: net.given.n),
}


@pytest.mark.parametrize("name", OPAQUE)
def test_state_that_is_in_no_attribute(name):
    act, look = OPAQUE[name]
    net = Holds()
    before, held = look(net), getattr(net, name)
    seen = Snapshot(net)
    assert seen.put_back() is None
    act(net)
    assert look(net) != before, "the test changes nothing"
    assert f"Holds.{name}" in seen.put_back()
    assert look(net) == before
    assert getattr(net, name) is held


def counts():
    yield from range(9)


@pytest.mark.parametrize(
    "kind", [itertools.count, counts, lambda: iter([1]), lambda: zip([1], [2], strict=True)]
)
def test_an_iterator_is_not_tried_at_all(kind):
    net = Net()
    assert not Snapshot(net).refused
    net.source = kind()
    assert Snapshot(net).refused == "Net.source is an iterator, which cannot be put back"


HELPER = """
    import functools, itertools
    from torch import nn
    calls, source, unused = 0, itertools.count(), itertools.count()

    def counted():
        global calls
        calls += 1

    def draws():
        return next(source)

    def wrap(function):
        @functools.wraps(function)
        def wrapper(*args):
            wrapper.seen += 1
            return function(*args)
        wrapper.seen = 0
        return wrapper

    class Counter:
        calls = 0
        def __call__(self):
            Counter.calls += 1
"""
SCRIPT = """
    import functools
    from torch import nn
    import {name} as helper
    from {name} import counted, draws, wrap, Counter
    def around():
        counted()
    class Property:
        @property
        def count(self):
            counted()
    class Static:
        @staticmethod
        def count():
            counted()
    class OfClass:
        @classmethod
        def count(cls):
            counted()
    class Functools:
        count = functools.cached_property(lambda self: counted())
        part = functools.partialmethod(lambda self, act: act(), counted)
    once = functools.lru_cache(counted)
    part = functools.partial(lambda act: act(), counted)
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.held, self.counter = Property(), Counter().__call__
        def forward(self):
            {does}
    class Data:
        def __init__(self):
            self.held, self.counter = Property(), Counter().__call__
        def __getitem__(self, at):
            {does}
"""
ELSEWHERE = {
    "counted()": "it changes the global calls",
    "helper.counted()": "it changes the global calls",
    "around()": "it changes the global calls",
    "wrap(counted)()": "it changes the global calls",
    "Property().count": "it changes the global calls",
    "Static.count()": "it changes the global calls",
    "OfClass.count()": "it changes the global calls",
    "self.held.count": "it changes the global calls",
    "Functools().count": "it changes the global calls",
    "Functools().part()": "it changes the global calls",
    "once()": "it changes the global calls",
    "part()": "it changes the global calls",
    "self.counter()": "it changes Counter.calls",
    "Counter()()": "it changes Counter.calls",
    "draws()": "the global source is an iterator, which cannot be put back",
    "pass": "",
}


@pytest.mark.parametrize("does", ELSEWHERE)
def test_what_is_changed_by_code_in_another_file(does, tmp_path, monkeypatch):
    name = f"helper_{list(ELSEWHERE).index(does)}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(HELPER))
    (tmp_path / f"{name}_script.py").write_text(
        textwrap.dedent(SCRIPT.format(name=name, does=does))
    )
    monkeypatch.syspath_prepend(tmp_path)
    script = importlib.import_module(f"{name}_script")
    net, data, helper = script.Net(), script.Data(), sys.modules[name]
    for seen, act in ((Snapshot(net), net), (Snapshot(dataset=data), lambda: data[0])):
        if not seen.refused:
            act()
        assert (seen.refused or seen.put_back() or "") == ELSEWHERE[does]
        assert (helper.calls, helper.Counter.calls) == (0, 0)
    assert next(helper.source) == 0


@functools.lru_cache
def cached(n):
    return n


@pytest.mark.parametrize("before", [0, 1])
def test_a_cache_that_holds_something_keeps_it(before):
    cached.cache_clear()
    for n in range(before):
        cached(n)
    seen = Snapshot(Net())
    Net()(lambda net: cached(7))
    assert seen.put_back() is None
    assert cached.cache_info().currsize == 2 * before


def test_a_forward_that_leaves_nothing_leaves_nothing():
    net = Net()
    seen = Snapshot(net)
    net(lambda net: net.weight * 2 + number)
    assert seen.put_back() is None


def test_modules_that_are_no_part_of_the_tree_are_put_back():
    apart = nn.BatchNorm1d(2)

    class Holding(nn.Module):
        def __init__(self):
            super().__init__()
            self.hidden = [Net()]

        def forward(self, x):
            return apart(x)

    holding = Holding()
    state = Snapshot(holding)
    assert state.put_back() is None
    holding.hidden[0].count += 1
    holding.hidden[0].calls += 1
    apart.running_mean += 1
    assert state.put_back()
    assert (holding.hidden[0].count.item(), holding.hidden[0].calls) == (0, 0)
    assert apart.running_mean.tolist() == [0, 0]
