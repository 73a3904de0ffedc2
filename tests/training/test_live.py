"""Generators that are objects, wherever a data set has them from; a search costs what is new."""

import gc
import random
import sys
import types

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from tests.support.training import TWO_OR_THREE, Scripts, assert_as_alone, on_ranks

script = Scripts()
KEPT = types.SimpleNamespace(maker=None)


class Sampled(Dataset):
    """A data set by a function."""

    def __init__(self, draw, **held):
        self.draw = draw
        vars(self).update(held)

    def __len__(self):
        return 11

    def __getitem__(self, n):
        return torch.full((2,), n + self.draw())


class Jitter:
    """A transform with a generator that it gets later."""

    rng = None

    def __call__(self):
        return float(torch.rand((), generator=self.rng))


def batches(data):
    """The sums of two passes, without a worker and with one."""
    loaders = (DataLoader(data, 4, shuffle=True, num_workers=n) for n in (0, 0, 1))
    return [x.sum().item() for loader in loaders for x in loader]


@script
def of_a_global_of_the_module():
    KEPT.maker = np.random.default_rng(0)
    return batches(Sampled(lambda: KEPT.maker.random())), KEPT.maker.random()


@script
def of_a_global_of_the_module_that_torch_has_made():
    KEPT.maker = Jitter()
    KEPT.maker.rng = torch.Generator().manual_seed(3)
    return batches(Sampled(lambda: KEPT.maker())), KEPT.maker()


@script
def of_a_module_that_holds_much_else():
    KEPT.maker = [[[str(n) + str(m)] for m in range(100)] for n in range(200)]
    KEPT.maker.append([[[[torch.Generator().manual_seed(3)]]]])
    draws = lambda: float(torch.rand((), generator=KEPT.maker[-1][0][0][0][0]))  # noqa: E731
    return batches(Sampled(draws)), draws()


@script
def of_a_closure():
    rng, other = random.Random(0), torch.Generator().manual_seed(0)
    draws = lambda: rng.random() + float(torch.rand((), generator=other))  # noqa: E731
    return batches(Sampled(draws)), draws()


@script
def of_a_transform_that_got_it_when_it_was_old():
    nested = types.SimpleNamespace(all=[Jitter()])
    data = Sampled(lambda: nested.all[0]())
    gc.collect()
    nested.all[0].rng = torch.Generator().manual_seed(3)
    return batches(data), nested.all[0]()


@script
def of_the_class():
    class Own(Sampled):
        rng, more = torch.Generator().manual_seed(2), random.Random(2)

        def __getitem__(self, n):
            return torch.rand(2, generator=self.rng) + self.more.random()

    return batches(Own(None)), Own.more.random()


@script
def of_a_list_of_many_that_is_old():
    many = [random.Random(n) for n in range(3000)]
    for _ in range(3):
        gc.collect()
    picked = iter(range(2000, 3000))
    return batches(Sampled(lambda: many[next(picked) // 500].random())), many[5].random()


@script
def of_objects_that_the_collector_leaves_out():
    data = Sampled(lambda: data.rng.random(), rng=random.Random(4))
    gc.freeze()
    found = batches(data), data.rng.random()
    gc.unfreeze()
    return found


@script
def made_by_the_first_sample_deep_inside():
    jitter = Jitter()

    def draw():
        jitter.rng = jitter.rng or torch.Generator().manual_seed(1)
        return jitter()

    return batches(Sampled(draw)), jitter()


@TWO_OR_THREE
@pytest.mark.parametrize("name", script)
def test_samples_are_those_of_one_process(seen, name, nproc):
    assert_as_alone(seen[1][name][0], seen[nproc][name])


def test_a_search_looks_at_new_objects_alone():
    def looks(run):
        generations, objects = set(), [0]
        records = [{"n": [n]} for n in range(300_000)]

        def note(event, args):
            if event == "gc.get_objects":
                generations.add(args[0])
            elif event == "gc.get_referents":
                objects[0] += len(args[0])

        sys.addaudithook(note)
        for workers in (0, 1):
            for _ in range(3):
                loader = DataLoader(Sampled(lambda: len(records)), 4, num_workers=workers)
                assert len(list(loader)) == 3
        return generations, objects[0]

    for generations, objects in on_ranks(looks):
        assert generations == {0}
        assert 0 < objects < 100_000


def test_generators_that_nobody_else_holds_are_let_go():
    def kept(run):
        live = next(x for x in gc.get_objects() if type(x).__name__ == "LiveGenerators")
        alive = [random.Random(n) for n in range(500)]
        for _ in range(20):
            some = [random.Random(n) for n in range(100)]
            gc.collect()
            del some
        live.look()
        assert {*map(id, alive)} <= {*map(id, live._older)}
        return len(live._older)

    assert all(found < 1500 for found in on_ranks(kept))
