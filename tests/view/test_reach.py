"""What a call is given is filled in place and put back; what the callee left there stays."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, UserDict, deque, namedtuple
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from autoddp.view import Rows, full
from autoddp.view.proof.reach import DEPTH, MOST, Reach, reach_of
from tests.support.training import on_ranks

Pair = namedtuple("Pair", "a b")  # as scripts have them


class Plain:
    def __init__(self, **held: Any) -> None:
        vars(self).update(held)


class Slotted:
    __slots__ = ("other", "value")

    def __init__(self, value: Any) -> None:
        self.value = value


@dataclasses.dataclass(frozen=True)
class Frozen:
    value: Any


class Output(OrderedDict[str, Any]):
    """As Hugging Face's ModelOutput: what it holds is an entry and an attribute."""

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        vars(self)[key] = value


def output(x: Any) -> Output:
    made = Output()
    made["first"], made["second"] = x, 2
    made.move_to_end("first")
    return made


HOLDERS = {
    "list": lambda x: [1, x],
    "nested": lambda x: [{"a": (x, [x, 3])}],
    "tuple": lambda x: (x, 2),
    "named tuple": lambda x: Pair(x, [x]),
    "dict": lambda x: {"a": x, 3: None},
    "deque": lambda x: deque([x, 1], maxlen=3),
    "ordered": output,
    "user's dict": lambda x: UserDict(a=x),
    "object": lambda x: Plain(x=x, parts=[Plain(y=x)]),
    "slots": Slotted,
    "frozen": Frozen,
    "namespace": lambda x: SimpleNamespace(x=x),
}


def shown(value: Any) -> Any:
    """All that it holds, with the identity of what holds it."""
    if isinstance(value, torch.Tensor):
        return id(value)
    if isinstance(value, (dict, UserDict)):
        return id(value), [(k, shown(v)) for k, v in value.items()], shown_attributes(value)
    if isinstance(value, (list, tuple, deque)):
        return id(value), [shown(v) for v in value]
    if isinstance(value, (Plain, Slotted, Frozen, SimpleNamespace)):
        return id(value), shown_attributes(value)
    return value


def shown_attributes(value: Any) -> Any:
    names = [
        *getattr(value, "__dict__", ()),
        *(n for n in ("value", "other") if isinstance(value, Slotted)),
    ]
    return [(n, shown(getattr(value, n, "none"))) for n in names]


@pytest.mark.parametrize("kind", HOLDERS)
def test_what_is_filled_in_is_seen_and_put_back(kind: str) -> None:
    x, y = torch.ones(2), torch.zeros(1)
    value = HOLDERS[kind](x)
    before, reach = shown(value), reach_of((value,), {})
    with reach.filled([y if leaf is x else leaf for leaf in reach.leaves]) as (got,):
        assert isinstance(value, tuple) or got is value
        inside = Reach((got,))
        assert not any(leaf is x for leaf in inside.leaves)
        assert any(leaf is y for leaf in inside.leaves)
        assert inside.layout == Reach((value,)).layout
    assert shown(value) == before


@pytest.mark.parametrize("kind", HOLDERS)
def test_after_a_trial_everything_is_as_it_was(kind: str) -> None:
    x = torch.ones(2)
    value = HOLDERS[kind](x)
    before, reach = shown(value), reach_of((value,), {})
    reach.fill([torch.zeros(1) if leaf is x else leaf for leaf in reach.leaves])
    for space, _ in reach.spaces:
        if isinstance(space, dict):
            space.clear()
            space["new"] = 1
        elif isinstance(space, (list, deque)):
            space.append(torch.ones(1))
            space[0] = None
        else:
            space.put("other", 5)
    reach.restore()
    assert shown(value) == before


def test_what_the_callee_left_stays_and_what_it_moved_is_the_callers() -> None:
    x, y, new = torch.ones(2), torch.zeros(1), torch.ones(3)
    kept, held = [x], {"a": x}
    reach = reach_of((kept,), {"held": held})
    with reach.filled([y, y]) as values:

        def run(given: Any, held: Any) -> None:
            given.append(new)
            given.insert(0, given[0])
            held["b"] = (held.pop("a"), 1)

        reach.call(run, values)
    assert kept[0] is kept[1] is x
    assert kept[2] is new
    assert list(held) == ["b"]
    assert held["b"][0] is x


def test_an_exception_puts_back_as_well() -> None:
    x, held = torch.ones(2), Plain(x=1)
    held.x = x
    with pytest.raises(KeyError), reach_of((held,), {}).filled([torch.zeros(1)]):
        raise KeyError
    assert held.x is x


def test_one_that_holds_itself_is_looked_at_once() -> None:
    ring: list[Any] = [1]
    ring.append(ring)
    assert Reach((ring, ring)).leaves == [1]


def test_what_reaches_too_far_and_what_is_not_for_us() -> None:
    deep: list[Any] = []
    for _ in range(DEPTH + 2):
        deep = [deep]
    assert Reach((deep,)).refused
    assert Reach(([[n] for n in range(MOST)],)).refused
    closed = [nn.Linear(1, 1), torch.Generator(), int, len, torch.float32, {1}, iter([])]
    assert Reach(tuple(closed)).leaves == closed


class Leaves(nn.Module):
    """Leaves something in what it is given."""

    def __init__(self, act: Any) -> None:
        super().__init__()
        self.inner, self.act = nn.Linear(3, 3), act

    def forward(self, x: Any, given: Any) -> Any:
        y = self.inner(x)
        self.act(given, x, y)
        return y


def replaces(given: Any, x: Any, y: Any) -> None:
    given[0] = y * 2


def clears(given: Any, x: Any, y: Any) -> None:
    given.clear()


def keeps_its_input(given: Any, x: Any, y: Any) -> None:
    given.append({"x": x, "both": (x, y)})


def couples(given: Any, x: Any, y: Any) -> None:
    given.append(y - y.mean(0))


def sums(given: Any, x: Any, y: Any) -> None:
    given.append(y.sum())


ACTS = (replaces, clears, keeps_its_input, couples, sums)


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
def test_what_a_split_call_leaves_is_that_of_the_whole_batch(act: Any) -> None:
    def script(run: Any) -> Any:
        torch.manual_seed(0)
        torch.set_default_dtype(torch.float64)
        model, found = Leaves(act), []
        for _ in range(3):
            x, other = torch.randn(7, 3), torch.randn(7, 3)
            given = [other]
            y = model(x, given)
            leaves = [leaf for leaf in Reach((given,)).leaves if isinstance(leaf, torch.Tensor)]
            assert all(type(leaf) is Rows or leaf.shape[:1] in ((), (7,)) for leaf in leaves)
            moved = [leaf is x or leaf is other for leaf in leaves]
            sum([full(leaf).pow(2).sum() for leaf in leaves], y.sum()).backward()
            found.append(
                [moved, [full(leaf).tolist() for leaf in leaves], model.inner.weight.grad.tolist()]
            )
        return found, [d.what for d in run.report.of("split")]

    alone, _ = on_ranks(script, 1)[0]
    for found, split in on_ranks(script, 3):
        for got, want in zip(found, alone, strict=True):
            assert got[0] == want[0]
            torch.testing.assert_close(got[1:], want[1:], rtol=1e-12, atol=1e-12)
        assert split


class Positions(nn.Module):
    """Hands a table on that is of no rows, as T5 does with its biases."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.inner = nn.Embedding(4, 3), nn.Linear(3, 3)

    def forward(self, x: Any, bias: Any = None) -> Any:
        if bias is None:
            bias = self.table(torch.arange(4)).unsqueeze(0)
        return self.inner(x + bias), bias


def test_what_is_computed_of_no_rows_is_whole_and_its_gradient_true() -> None:
    def script(run: Any) -> Any:
        torch.manual_seed(0)
        torch.set_default_dtype(torch.float64)
        first, second, found = Positions(), Positions(), []
        for _ in range(3):
            x, bias = first(torch.randn(7, 4, 3))
            x, again = second(x, bias)
            assert again is bias
            (x.pow(2).mean() + bias.pow(3).sum()).backward()
            found.append([x.sum().item(), bias.tolist(), first.table.weight.grad.tolist()])
        return found, [d.what for d in run.report.of("whole")]

    alone, _ = on_ranks(script, 1)[0]
    for found, whole in on_ranks(script, 3):
        torch.testing.assert_close(found, alone, rtol=1e-12, atol=1e-12)
        assert not whole


class Named:
    def __iter__(self) -> Any:
        raise AssertionError("the script's own way is none of a proof's")


class Mixed(Named, NamedTuple("Items", [("first", Tensor), ("second", int)])):
    """A named tuple with another base."""


def test_a_tuple_of_any_class_is_looked_into_and_built_anew():
    there = reach_of((Mixed(torch.zeros(2), 3),), {})
    assert [type(leaf) for leaf in there.leaves] == [Tensor, int]
    (made,) = there.fill([torch.ones(2), 4])
    assert (type(made), made.first.tolist(), made.second) == (Mixed, [1, 1], 4)
    marked = Mixed(torch.zeros(2), 3)
    marked.more = 1
    assert "attributes besides" in reach_of((marked,), {}).refused
