"""Patches are declared, installed and undone exactly: the mechanism, on fake modules."""

from __future__ import annotations

import importlib
import inspect
import itertools
import os
import re
import sys
import unittest.mock
from contextlib import ExitStack
from types import ModuleType

import pytest
import torch

from autoddp.errors import PatchTargetMissing
from autoddp.options import Options
from autoddp.patching import ABSENT, Feature, Installation, find, patch
from autoddp.patching.call import Binding
from autoddp.process.features import FEATURES
from autoddp.process.session import session
from autoddp.report import Report
from tests.support.ranks import run_ranks

SOURCE = """
def plain(x): return ("plain", x)
alias = plain

class Base:
    def method(self, x): return (type(self).__name__, x)
    def inherited(self, x): return ("inherited", x)
    @staticmethod
    def static(x): return ("static", x)
    @classmethod
    def klass(cls, x): return (cls.__name__, x)

class Child(Base):
    pass
"""


@pytest.fixture
def fake(monkeypatch):
    """A module that is imported already."""
    module = ModuleType("fake_target")
    exec(SOURCE, module.__dict__)
    monkeypatch.setitem(sys.modules, "fake_target", module)
    return module


def feature(*targets, **how):
    """A feature with one patch that marks what the original returned."""

    class Marks(Feature):
        name = "marks"

        @patch(*(f"fake_target:{target}" for target in targets), why="to see it", **how)
        def mark(self, call):
            return ("marked", call.plain())

    return Marks()


CALLS = {
    "plain": lambda m: m.plain(1),
    "Base.method": lambda m: m.Base().method(1),
    "Base.static": lambda m: (m.Base.static(1), m.Base().static(1), m.Child.static(1)),
    "Base.klass": lambda m: (m.Base.klass(1), m.Child.klass(1), m.Child().klass(1)),
    "Child.inherited": lambda m: (m.Child().inherited(1), m.Base().inherited(1)),
}


def slots(module):
    """Every slot of the module and its classes, by identity."""
    owners = [module, module.Base, module.Child]
    return {(o.__name__, k): id(v) for o in owners for k, v in vars(o).items() if k != "__doc__"}


@pytest.mark.parametrize("target", CALLS)
def test_install_and_undo_are_exact(fake, target):
    before, plain = slots(fake), CALLS[target](fake)
    for _ in range(2):
        installation = Installation([feature(target)])
        with installation:
            assert "marked" in str(CALLS[target](fake))
            assert str(CALLS[target](fake)).count("marked") == str(plain).count("(") - (
                "((" in str(plain)
            ) - (target == "Child.inherited"), "one layer, and only where it belongs"
        assert CALLS[target](fake) == plain
        assert slots(fake) == before


def test_a_module_imported_later_is_patched_then(tmp_path, monkeypatch):
    (tmp_path / "fake_target.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    installation = Installation([feature("plain")])
    with installation:
        module = importlib.import_module("fake_target")
        assert module.plain(1) == ("marked", ("plain", 1))
    assert module.plain(1) == ("plain", 1)
    monkeypatch.delitem(sys.modules, "fake_target")
    again = importlib.import_module("fake_target")
    assert again.plain(1) == ("plain", 1), "what is undone stays undone"


def test_a_missing_target_rolls_back_the_installation(fake):
    undone = []

    class First(Feature):
        name = "first"

        def setup(self, undo: ExitStack) -> None:
            undo.callback(undone.append, "setup")

    before = slots(fake)
    installation = Installation([First(), feature("plain"), feature("Base.none")])
    with pytest.raises(PatchTargetMissing, match=r"^fake_target:Base\.none does not exist in fake"):
        installation.install()
    assert slots(fake) == before
    assert undone == ["setup"]
    assert not installation.active


# ---- every declared patch, on the installed torch

DECLARED = [item for each in FEATURES for item in each.patches()]


@pytest.mark.parametrize("item", DECLARED, ids=lambda item: f"{item.feature}-{item.targets[0]}")
def test_every_target_exists_and_has_a_reason(item):
    assert item.why.strip()
    for target in item.targets:
        name = target.partition(":")[0]
        try:
            with unittest.mock.patch.dict(os.environ):  # importing some packages changes it
                module = importlib.import_module(name)
        except ModuleNotFoundError:
            assert item.optional, f"{name} is not installed, and the patch not optional"
            continue
        find(target, module, optional=item.optional)


def real_slots():
    """What stands at every declared target of what is imported."""
    found = {}
    for item in DECLARED:
        for target in item.targets:
            name = target.partition(":")[0]
            if name in sys.modules:
                owner, attribute, _ = find(target, sys.modules[name], optional=True)
                if owner is not ABSENT:
                    found[target] = vars(owner).get(attribute, ABSENT)
    return found


def in_a_session(group, view):
    """On one rank: what is not as it was inside, and what is not as it was after, twice."""
    before, changes = real_slots(), []
    for _ in range(2):
        with session(group.world, Options(view=view), group, Report()):
            now = real_slots()
            changes.append(sorted(key for key in before if now[key] is not before[key]))
        now = real_slots()
        changes.append(sorted(key for key in before if now[key] is not before[key]))
    return changes


@pytest.mark.parametrize("view", ["global", "local"])
def test_a_session_is_undone_exactly(view):
    for inside, after, again, after_again in run_ranks(in_a_session, 2, view):
        assert inside or view == "local"
        assert again == inside
        assert after == after_again == []


def alone(group):
    """With one rank in the world nothing is patched."""
    before = real_slots()
    with session(group.world, Options(), group, Report()):
        return [key for key, slot in real_slots().items() if slot is not before[key]]


def test_one_rank_is_not_patched():
    assert run_ranks(alone, 1) == [[]]


def test_a_name_imported_before_is_replaced_and_put_back(monkeypatch):
    library, script = ModuleType("library"), ModuleType("script")
    library.act = lambda: "plain"
    script.own_name = plain = library.act
    monkeypatch.setitem(sys.modules, "library", library)

    class Act(Feature):
        name = "act"

        @patch("library:act", why="for the test")
        def patched(self, call):
            return "patched"

    with Installation([Act(None)], lambda: [script]):
        assert (library.act(), script.own_name()) == ("patched", "patched")
        script.kept = library.act
    assert script.own_name is plain
    assert script.kept() == "plain"
    with Installation([Act(None)], lambda: [script]):
        assert script.kept() == "patched", "a wrapper that was kept is replaced in the next session"
    assert library.act is plain
    with Installation([Act(None)]):
        assert script.own_name() == "plain"


def all_named(a, b=2, *, c, d=4):
    """Parameters that all have names."""


def open_ended(a, /, b=2, *more, c=3, **others):
    """Others."""


@pytest.mark.parametrize("function", [all_named, open_ended, torch.autograd.backward])
def test_arguments_are_bound_as_python_binds_them(function):
    binding = Binding(function)
    names = [*binding.names[:4], "z"]
    for count, some in itertools.product(range(4), range(2 ** len(names))):
        args = [*"xyz"][:count]
        kwargs = {name: name for n, name in enumerate(names) if some >> n & 1}
        try:
            want = inspect.signature(function).bind(*args, **kwargs)
        except TypeError as error:
            with pytest.raises(TypeError, match=re.escape(str(error))):
                binding.bind(args, kwargs)
        else:
            found = binding.bind(args, kwargs)
            assert [*found.arguments.items()] == [*want.arguments.items()]
            assert found.args == want.args
            assert found.kwargs == want.kwargs
