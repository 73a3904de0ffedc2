import multiprocessing
import os
import random
import secrets
import tempfile
import threading
import types
import uuid

import numpy as np
import pytest
import torch

from autoddp.effects.files import Files
from autoddp.effects.folders import Folders
from autoddp.effects.randomness import Randomness
from autoddp.effects.temporary import Temporary
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


def own(run):
    """A value that differs between ranks."""
    return os.getpid() + run.world.rank


SEEDINGS = {
    "random.seed": lambda n: random.seed(n),
    "random.seed text": lambda n: random.seed(f"{n}"),
    "random.seed()": lambda n: random.seed(),
    "np.random.seed": lambda n: np.random.seed(n),
    "np.random.seed()": lambda n: np.random.seed(),
    "np.random.seed(np.int64)": lambda n: np.random.seed(np.int64(n)),
    "torch.manual_seed": lambda n: torch.manual_seed(n),
    "torch.seed": lambda n: torch.seed(),
    "random.seed(urandom)": lambda n: random.seed(int.from_bytes(os.urandom(8), "little")),
    "random.seed(hash)": lambda n: random.seed(hash(f"text {torch.seed()}")),
}


@pytest.mark.parametrize("seed", SEEDINGS.values(), ids=SEEDINGS)
def test_seeds_are_rank_0s(on, seed):
    def script(run):
        returned = seed(own(run))
        return draws(), torch.initial_seed(), returned if isinstance(returned, int) else None

    zero, one = on(script)
    assert zero == one


def test_the_scripts_own_seed_is_honoured(on):
    def script(run):
        torch.manual_seed(3)
        random.seed(3)
        np.random.seed(3)
        rng = np.random.default_rng(3)
        return draws(), float(rng.random()), random.Random(3).random()

    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    one = draws(), float(np.random.default_rng(3).random()), random.Random(3).random()
    assert on(script) == [one, one]


def seeded():
    generator = torch.Generator()
    assert generator.seed() == generator.initial_seed()
    return generator


MADE = {
    "default_rng()": lambda n: float(np.random.default_rng().random()),
    "default_rng(n)": lambda n: float(np.random.default_rng(n).random()),
    "default_rng(sequence)": lambda n: float(np.random.default_rng([1, 2]).random()),
    "SeedSequence()": lambda n: np.random.SeedSequence().entropy,
    "RandomState()": lambda n: float(np.random.RandomState().rand()),
    "random.Random()": lambda n: random.Random().random(),
    "SystemRandom": lambda n: random.SystemRandom().random(),
    "RandomState(MT19937())": lambda n: float(np.random.RandomState(np.random.MT19937()).rand()),
    "Generator(PCG64())": lambda n: float(np.random.Generator(np.random.PCG64()).random()),
    "torch.Generator().seed()": lambda n: torch.rand(2, generator=seeded()).tolist(),
    "SystemRandom.shuffle": lambda n: random.SystemRandom().sample(range(99), 9),
    "uuid3 of uuid1": lambda n: str(uuid.uuid3(uuid.uuid1(), "name")),
    "uuid5 of uuid4": lambda n: str(uuid.uuid5(uuid.uuid4(), "name")),
    "getrandom": lambda n: os.getrandom(8),
    "getrandom(flags)": lambda n: os.getrandom(8, flags=os.GRND_NONBLOCK),
    "secrets.choice": lambda n: [secrets.choice("abcdefghijkl") for _ in range(9)],
    "secrets.token_urlsafe": lambda n: secrets.token_urlsafe(),
    "secrets.SystemRandom": lambda n: secrets.SystemRandom().getrandbits(64),
    "hash": lambda n: (hash("text"), list({f"name{i}" for i in range(20)})),
    "uuid4": lambda n: str(uuid.uuid4()),
    "uuid1": lambda n: str(uuid.uuid1()),
    "urandom": lambda n: os.urandom(8),
    "secrets": lambda n: secrets.token_hex(8),
}


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_what_the_system_would_make_differ_is_rank_0s(on, make):
    zero, one = on(lambda run: make(own(run)))
    assert zero == one


def test_names_of_temporary_files_are_rank_0s(tmp_path):
    def script(run):
        with (
            tempfile.NamedTemporaryFile("w") as named,
            tempfile.TemporaryDirectory() as folder,
            tempfile.SpooledTemporaryFile(max_size=4) as spooled,
        ):
            spooled.write(b"more than four")
            handle, path = tempfile.mkstemp()
            os.close(handle)
            os.remove(path)
            spooled.seek(0)
            return named.name, folder, path, tempfile.mktemp(), spooled.read()

    features = (Randomness, Files, Folders, Temporary)
    zero, one = on_ranks(script, 2, *features, folder=tmp_path)
    assert zero == one


def test_each_unseeded_generator_differs_from_the_last(on):
    def script(run):
        return random.Random().random(), random.Random().random(), uuid.uuid4(), uuid.uuid4()

    a, b, c, d = on(script)[0]
    assert a != b
    assert c != d


def test_a_worker_draws_its_own(on):
    class Drawn(torch.utils.data.Dataset):
        def __len__(self):
            return 3

        def __getitem__(self, at):
            random.seed(at)
            return int.from_bytes(os.urandom(4), "little")

    def script(run):
        for workers in (0, 1):
            list(torch.utils.data.DataLoader(Drawn(), num_workers=workers))
        return os.urandom(8)

    agreed, same = on(script)
    assert agreed == same


LIBRARY = """
import os, random, secrets, tempfile, uuid
from multiprocessing.shared_memory import SharedMemory
import numpy as np
import torch


def numbers():
    random.seed()
    np.random.seed()
    return [
        np.random.SeedSequence().entropy,
        float(np.random.default_rng().random()),
        float(np.random.RandomState().rand()),
        random.Random().random(),
        random.SystemRandom().random(),
        secrets.token_hex(8),
        str(uuid.uuid4()),
        os.urandom(100),
        os.getrandom(8),
        torch.seed(),
        torch.Generator().seed(),
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
    """A module that counts as installed."""
    space = {}
    exec(compile(LIBRARY, str(folder / "site-packages" / name / "lib.py"), "exec"), space)
    return types.SimpleNamespace(**space)


@pytest.mark.parametrize("nproc", [2, 3])
def test_what_a_library_draws_is_the_same_on_all_ranks(on, tmp_path, nproc):
    seen = on(lambda run: library(tmp_path).numbers(), nproc)
    assert seen == [seen[0]] * nproc


def test_a_file_that_is_generated_draws_the_same_whatever_its_name(on, tmp_path):
    zero, one = on(lambda run: library(tmp_path / str(os.getpid())).numbers())
    assert zero == one


def test_a_rank_that_draws_alone_disturbs_nobody(on, tmp_path):
    def script(run):
        lib = library(tmp_path)
        if run.world.rank:
            lib.draw(), lib.numbers(), os.urandom(8), uuid.uuid4()
        return [lib.draw() for _ in range(3)], os.urandom(8), lib.again(), lib.draw()

    zero, one = on(script)
    assert zero == one
    assert len({*zero[0], *zero[1:]}) == 6


def eight():
    return os.urandom(8)


def test_a_thread_and_a_forked_child_draw_their_own(on):
    def script(run):
        drawn = []
        thread = threading.Thread(target=lambda: drawn.append(os.urandom(8)))
        thread.start()
        thread.join()
        with multiprocessing.get_context("fork").Pool(1) as pool:
            drawn.append(pool.apply(eight))
        return drawn, os.urandom(8)

    (zero, same), (one, agreed) = on(script)
    assert not set(zero) & set(one)
    assert same == agreed


def test_names_that_every_rank_makes_are_its_own(on, tmp_path):
    zero, one = on(lambda run: library(tmp_path).names())
    assert not set(zero) & set(one)
    zero, one = on(
        lambda run: [library(tmp_path, name).draw() for name in ("filelock", "huggingface_hub")]
    )
    assert not set(zero) & set(one)


def test_a_size_that_is_none_fails_as_under_python(on):
    def script(run):
        with pytest.raises(ValueError, match="negative argument not allowed"):
            os.urandom(-1)
        with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
            os.urandom("8")
        return os.urandom(0), len(os.urandom(1000)), len(os.urandom(np.int64(3)))

    assert on(script) == [(b"", 1000, 3)] * 2


def test_each_job_draws_anew(on):
    first, second = (on(lambda run: os.urandom(8))[0] for _ in range(2))
    assert first != second


def test_names_of_temporary_files_do_not_disturb_the_states(on):
    def script(run):
        before = random.getstate()
        tempfile.mkdtemp()
        return before == random.getstate(), draws()

    zero, one = on(script)
    assert zero == one
    assert zero[0]
