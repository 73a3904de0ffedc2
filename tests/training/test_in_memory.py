"""Batches of tensors in memory: torch's own bits, and what workers would have sent."""

from __future__ import annotations

import multiprocessing

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader, Subset, TensorDataset

from autoddp.training.loading.in_memory import MemoryFetcher, fetcher
from tests.support.training import (
    TWO_OR_THREE,
    DrawsBetween,
    Runs,
    Scripts,
    assert_as_alone,
    batches,
    mlp,
    on_ranks,
    rows,
    train,
    weights,
)

# ---- one indexing, and torch's own fetch

KINDS = {
    "floats": lambda: torch.randn(9, 4),
    "half": lambda: torch.randn(9, 4).bfloat16(),
    "numbers": lambda: torch.arange(9),
    "truths": lambda: torch.arange(9) % 2 == 0,
    "complex": lambda: torch.randn(9, 2, dtype=torch.complex64).conj(),
    "transposed": lambda: torch.randn(4, 9).T,
    "expanded": lambda: torch.randn(1, 4).expand(9, 4),
    "channels last": lambda: torch.randn(9, 3, 2, 2).to(memory_format=torch.channels_last),
    "empty rows": lambda: torch.randn(9, 0),
    "a parameter": lambda: torch.randn(9, 4, requires_grad=True),
    "sparse": lambda: torch.eye(9).to_sparse(),
}
PLACES = {
    "some": [3, 1, 8, 3],
    "from the end": [-1, 2],
    "truths": [True, False],
    "a number and a truth": [3, True],
    "numpy": [np.int64(4), np.int32(2)],
    "tensors": [torch.tensor(4), torch.tensor(2)],
    "outside": [3, 9],
    "none": [],
}


def outcome(fetch, places):
    """What a fetch gives, or its error."""
    try:
        return fetch(places)
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("subset", [False, True])
@pytest.mark.parametrize("places", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_batch_has_the_bits_and_strides_of_torchs(kind, places, subset):
    data = TensorDataset(kind(), torch.arange(9.0))
    data = Subset(Subset(data, range(8, -1, -1)), np.arange(9)) if subset else data
    ours = fetcher(DataLoader(data, 4), data)
    assert type(ours) is MemoryFetcher
    found, want = outcome(ours.fetch, places), outcome(ours.plain.fetch, places)
    assert type(found) is type(want)
    if type(want) is tuple:
        assert found == want
        return
    for x, y in zip(found, want, strict=True):
        assert torch.equal(x.to_dense(), y.to_dense())
        assert (x.dtype, x.layout, x.is_conj()) == (y.dtype, y.layout, y.is_conj())
        assert type(x.grad_fn) is type(y.grad_fn)
        assert x.layout is torch.sparse_coo or x.stride() == y.stride()
        assert not x.numel() or x.is_sparse or x.data_ptr() != data_of(data).data_ptr()


def data_of(data):
    return data_of(data.dataset) if isinstance(data, Subset) else data.tensors[0]


def test_what_is_usual_is_indexed_once():
    data = TensorDataset(torch.randn(9, 4), torch.arange(9))
    ours = MemoryFetcher(Subset(data, [*range(9)]), None)  # there is no other way
    assert torch.equal(ours.fetch([2, np.int64(5)])[1], torch.tensor([2, 5]))


def test_a_class_or_a_collate_function_that_was_changed_is_torchs(monkeypatch):
    data = TensorDataset(torch.randn(9, 4))
    monkeypatch.setattr(TensorDataset, "__getitem__", lambda self, n: (self.tensors[0][n] + 1,))
    assert torch.equal(fetcher(DataLoader(data, 4), data).fetch([2])[0][0], data.tensors[0][2] + 1)


# ---- in a training

script = Scripts()


class Calls(TorchFunctionMode):
    """Counts the calls of torch by name."""

    def __init__(self):
        self.found = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.found.append(func.__name__)
        return func(*args, **kwargs or {})


def trained(loader, epochs=2):
    """A training with draws in each step, and where the generator stands."""
    model = torch.nn.Sequential(mlp(), torch.nn.Dropout(0.2))
    return train(model, loader, epochs), weights(model), torch.rand(2)


WORKERS = {
    "workers": {"num_workers": 2},
    "that_stay": {"num_workers": 2, "persistent_workers": True},
    "far_ahead": {"num_workers": 1, "prefetch_factor": 5, "drop_last": True},
    "with_a_generator": {"num_workers": 2, "generator": "own"},
}


def by_workers(given, drawing):
    def loads():
        own = {"generator": torch.Generator().manual_seed(3)} if "generator" in given else {}
        order = {"sampler": DrawsBetween(22)} if drawing else {"shuffle": True}
        return trained(DataLoader(rows(), 6, **given | own | order))

    return loads


for name, given in WORKERS.items():
    for drawing in (False, True):
        script[name + "_and_a_sampler_that_draws" * drawing] = by_workers(given, drawing)


@script
def a_mode_of_the_script():
    with Calls() as calls:
        next(iter(DataLoader(TensorDataset(torch.ones(8, 2)), 4)))
    return "stack" in calls.found


@script
def written_while_workers_have_theirs():
    """By torch and by numpy; workers that stay never see it, others in the next epoch."""
    found = []
    for stay in (False, True):
        x = np.zeros((12, 1))
        data = TensorDataset(torch.from_numpy(x), torch.arange(12))
        loader = DataLoader(data, 4, num_workers=1, persistent_workers=stay)
        for _ in range(2):
            for _, (batch, _) in zip(range(2), loader, strict=False):
                found.append(batch.tolist())
                data.tensors[0].add_(1)
                x += 1
    return found


@script
def indices_written_while_workers_have_theirs():
    part = Subset(rows(12), [*range(6)])
    loader, found = DataLoader(part, 2, num_workers=1, prefetch_factor=1), []
    for x, _ in loader:
        found.append(x.tolist())
        part.indices[-1] = 11
    return found


@script
def a_pass_that_ends_early_and_one_in_parallel():
    loader, found = batches(20, 4, num_workers=2), []
    for (x, _), (z, _) in zip(loader, loader, strict=True):
        found.append((x + z).tolist())
        if len(found) == 3:
            break
    return found, [x.tolist() for x, _ in loader], torch.rand(1), len(loader)


seen = Runs(script.run)
chosen = Runs(lambda nproc: script.run(nproc, placement="replicated"))


@TWO_OR_THREE
@pytest.mark.parametrize("way", [seen, chosen], ids=["sharded", "replicated"])
@pytest.mark.parametrize("name", script)
def test_numbers_are_those_of_one_process(name, way, nproc):
    assert_as_alone(seen[1][name][0], way[nproc][name])


@pytest.mark.parametrize("nproc", [2, 3])
def test_batches_that_were_drawn_ahead_are_there_while_the_way_changes(nproc):
    """To and fro in the middle of passes, whose next batches were cut, or not, before."""

    def changing(run):
        found = []
        for x, y in batches(50, 4, num_workers=2):
            found.append((x.tolist(), y.tolist()))
            run.view.replicates = len(found) % 6 in (2, 3, 4)
        return found

    (alone,) = on_ranks(changing, 1)
    assert on_ranks(changing, nproc) == [alone] * nproc


def an_index_outside(run=None):
    loader, found = DataLoader(rows(9), 3, sampler=[0, 1, 2, 3, 99, 5, 6, 7, 8], num_workers=2), []
    batches = iter(loader)
    while True:
        try:
            found.append(next(batches)[0].tolist())
        except StopIteration:
            return found
        except IndexError as error:
            found.append(str(error).partition("\n")[0])


def test_an_error_has_a_workers_words_and_a_script_may_go_on():
    alone, *ranks = on_ranks(an_index_outside, 1) + on_ranks(
        an_index_outside, 2, placement="replicated"
    )
    assert ranks == [alone] * 2
    assert alone[1].startswith("Caught IndexError in DataLoader worker process 1.")
    assert len(alone) == 3


def started(loader):
    """Whether a pass over a loader has processes of its own."""
    passing = iter(loader)
    next(passing)
    return bool(multiprocessing.active_children())


def test_a_line_says_that_no_workers_start():
    assert seen[2]["workers"][0].said("loaders", "fetches its rows", "no workers start")


def test_workers_start_where_they_may_do_more_than_fetch():
    def counted(run):
        shared = TensorDataset(torch.ones(8, 2).share_memory_())
        large = TensorDataset(torch.ones(8, 1).expand(8, 1 << 17))
        return [
            started(DataLoader(rows(8), 4, num_workers=1)),
            started(DataLoader(rows(8), 4, num_workers=1, worker_init_fn=abs)),
            started(DataLoader(rows(8), 4, num_workers=1, multiprocessing_context="forkserver")),
            started(DataLoader(shared, 4, num_workers=1)),
            started(DataLoader(large, 8, num_workers=1)),
        ]

    assert on_ranks(counted, 2) == [[False, True, True, True, True]] * 2
