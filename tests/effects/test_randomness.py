import os
import random
import secrets
import types
import uuid

import numpy as np
import pytest
import torch

from autoddp.effects.randomness import Randomness
from tests.effects.outward import on_ranks


@pytest.fixture
def on(tmp_path):
    return lambda script, nproc=2, **kw: on_ranks(script, nproc, Randomness, folder=tmp_path, **kw)


def draws():
    return random.random(), float(np.random.rand()), float(torch.rand(()))


@pytest.mark.parametrize("nproc", [2, 3])
def test_ranks_start_from_rank_0s_states(on, nproc):
    seen = on(lambda run: (draws(), random.gauss(0, 1), float(np.random.randn())), nproc)
    assert seen == [seen[0]] * nproc


SEEDINGS = {
    "random.seed": lambda n: random.seed(n),
    "random.seed()": lambda n: random.seed(),
    "np.random.seed": lambda n: np.random.seed(n),
    "np.random.seed()": lambda n: np.random.seed(),
    "torch.manual_seed": lambda n: torch.manual_seed(n),
    "torch.seed": lambda n: torch.seed(),
    "random.seed(urandom)": lambda n: random.seed(int.from_bytes(os.urandom(8), "little")),
}


def test_seeds_are_rank_0s(on):
    def script(run):
        seen = {}
        for name, seed in SEEDINGS.items():
            returned = seed(os.getpid() + run.world.rank)
            seen[name] = draws(), torch.initial_seed(), returned if "torch.seed" in name else None
        return seen

    zero, one = on(script)
    assert zero == one


MADE = {
    "default_rng()": lambda: float(np.random.default_rng().random()),
    "RandomState()": lambda: float(np.random.RandomState().rand()),
    "random.Random()": lambda: random.Random().random(),
    "SystemRandom": lambda: random.SystemRandom().random(),
    "torch.Generator().seed()": lambda: torch.Generator().seed(),
    "getrandom": lambda: os.getrandom(8, flags=os.GRND_NONBLOCK),
    "hash": lambda: (hash("text"), list({f"name{i}" for i in range(20)})),
    "uuid4": lambda: str(uuid.uuid4()),
    "urandom": lambda: os.urandom(8),
    "secrets": lambda: secrets.token_hex(8),
}


def test_system_random_numbers_are_equal_on_ranks_and_never_repeat(on):
    def script(run):
        return [[make() for _ in range(2)] for make in MADE.values()]

    zero, one = on(script)
    assert zero == one
    assert [name for name, (a, b) in zip(MADE, zero, strict=True) if a == b] == ["hash"]


LIBRARY = """
import os, random, secrets, tempfile, uuid
from multiprocessing.shared_memory import SharedMemory
import numpy as np
import torch


def numbers():
    random.seed()
    np.random.seed()
    return [
        float(np.random.default_rng().random()),
        float(np.random.RandomState().rand()),
        random.Random().random(),
        str(uuid.uuid4()),
        os.urandom(100),
        torch.seed(),
        random.random(),
        float(np.random.rand()),
        float(torch.rand(())),
    ]


def draw():
    return os.urandom(8)


def again():
    return draw()


def names():
    memory = SharedMemory(create=True, size=8)
    memory.close()
    memory.unlink()
    with tempfile.NamedTemporaryFile() as file:
        return memory.name, file.name
"""


def library(folder, name="lib"):
    """Import a module as if it were installed."""
    space = {}
    exec(compile(LIBRARY, str(folder / "site-packages" / name / "lib.py"), "exec"), space)
    return types.SimpleNamespace(**space)


@pytest.mark.parametrize("nproc", [2, 3])
def test_random_numbers_of_a_library_are_equal_on_all_ranks(on, tmp_path, nproc):
    seen = on(lambda run: library(tmp_path).numbers(), nproc)
    assert seen == [seen[0]] * nproc


def test_later_draws_agree_after_a_rank_draws_alone(on, tmp_path):
    def script(run):
        lib = library(tmp_path)
        if run.world.rank:
            lib.draw(), lib.numbers(), os.urandom(8), uuid.uuid4()
        return [lib.draw() for _ in range(3)], os.urandom(8), lib.again(), lib.draw()

    zero, one = on(script)
    assert zero == one
    assert len({*zero[0], *zero[1:]}) == 6


def test_random_names_of_private_files_differ_by_rank(on, tmp_path):
    zero, one = on(lambda run: library(tmp_path).names())
    assert not set(zero) & set(one)
    zero, one = on(lambda run: [library(tmp_path, name).draw() for name in ("joblib", "triton")])
    assert not set(zero) & set(one)
