"""Generators that a data set has to itself are found wherever it holds them, and no others."""

from __future__ import annotations

import functools
import io
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats

from autoddp.training.sharing.reached import Reached


class Data:
    """A data set that holds something."""

    def __init__(self, held):
        self.held = held


def frozen(seed):
    """An object of a library's, three attributes above its generator."""
    made = stats.norm(0, 1)
    made.random_state = np.random.default_rng(seed)
    return made


OWN = {
    "random": lambda: random.Random(1),
    "numpy": lambda: np.random.default_rng(1),
    "numpy, as before": lambda: np.random.RandomState(1),
    "torch": lambda: torch.Generator(),
    "a library's": lambda: frozen(1),
    "in a list of a library's": lambda: [SimpleNamespace(transforms=(frozen(1), None))],
    "behind a method": lambda: random.Random(1).random,
    "behind a partial": lambda: functools.partial(max, key=np.random.default_rng(1).normal),
    "behind a file": lambda: {"a": io.StringIO("a"), "b": iter([1]), "c": random.Random(1)},
}
NONE = {
    "nothing": lambda: None,
    "everyone's": lambda: [random.random, np.random.rand, torch.rand, random, np.random],
    "many samples": lambda: [(f"{n}.png", n % 10) for n in range(1000)],
    "tensors": lambda: torch.rand(10),
}


@pytest.mark.parametrize("what", OWN)
def test_a_generator_of_its_own_is_found(what):
    assert Reached(Data(OWN[what]())).generator.startswith("Data.held")


@pytest.mark.parametrize("what", NONE)
def test_what_all_code_shares_is_none(what):
    assert Reached(Data(NONE[what]())).generator == ""
