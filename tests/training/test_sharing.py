"""A batch that one rank of a node loads for all: what travels, is noticed, who waits for whom."""

import collections
import contextlib
import gc
import os
import pickle
import random
import time
import weakref

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler

from autoddp.errors import Disagreement
from autoddp.training.loading.message import packed
from autoddp.view import is_sharded
from tests.support.training import TWO_OR_THREE, Scripts, assert_as_alone, on_ranks

script = Scripts()
Pair = collections.namedtuple("Pair", "x y")


class Sampled(Dataset):
    """A data set by a function."""

    def __init__(self, sample, count=11):
        self.sample, self.count = sample, count

    def __len__(self):
        return self.count

    def __getitem__(self, n):
        return self.sample(n)


def noisy(n):
    return torch.rand(3) + n, random.random(), f"{n}"


@script
def what_is_written_into_a_batch_stays_a_ranks_own():
    found = []
    for workers in (0, 2):
        loader = DataLoader(Sampled(lambda n: (torch.rand(99, 99), f"{n}")), 4, num_workers=workers)
        for x, _ in loader:
            x.add_(1)
            found.append(x.sum().item())
    return found


class Streamed(IterableDataset):
    """What one function yields."""

    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return iter(self.rows())


def by_torchs_sampler():
    for indices in BatchSampler(RandomSampler(range(12)), 5, False):
        yield torch.tensor(indices), torch.rand(2)


def by_its_own():
    made = torch.Generator().manual_seed(int(torch.randint(99, ())))
    return torch.randperm(12, generator=made).split(4)


@script
def generators_that_an_iteration_makes_and_nothing_else_has():
    found = []
    for rows in (by_torchs_sampler, by_its_own, by_torchs_sampler):
        found += DataLoader(Streamed(rows), batch_size=None)  # on each rank
        found += DataLoader(Streamed(rows), 1)
    return found, torch.rand(1)


@TWO_OR_THREE
@pytest.mark.parametrize("name", script)
def test_batches_are_those_of_one_process(seen, name, nproc):
    assert_as_alone(seen[1][name][0], seen[nproc][name])


@script
def batches_that_each_rank_makes():
    """Those of a collate function without workers need not be sent."""
    data = Sampled(lambda n: torch.rand(2))
    made = [call() for call in DataLoader(data, 2, collate_fn=lambda xs: lambda: torch.stack(xs))]
    for x in DataLoader(data, 2, collate_fn=lambda xs: torch.stack(xs).requires_grad_() * 2):
        made.append(x.detach())
    return made


def unpickled(n):
    return type("Name", (str,), {})(n)


def with_a_gradient(n):
    return torch.rand(2).requires_grad_() * 2


@pytest.mark.parametrize(
    ("sample", "why"),
    [(unpickled, "cannot be sent to other ranks"), (with_a_gradient, "gradient")],
)
def test_batches_that_cannot_be_sent_end_in_one_line(sample, why):
    def script(run):
        loader = DataLoader(Streamed(lambda: map(sample, range(4))), 2)
        with pytest.raises(Disagreement, match=f"{why}.*; run with --loading each"):
            list(loader)

    on_ranks(script, 2)


class Holds(IterableDataset):
    """Its iterations leave a generator behind."""

    def __iter__(self):
        self.made = torch.Generator()
        yield torch.rand(3, generator=self.made)


def test_a_generator_that_outlives_an_iteration_is_refused_on_one_rank():
    """The other ranks, which do not iterate, would have another state of it."""

    def script(run):
        shared, handed = torch.Generator(), torch.Generator()

        def closed():
            yield torch.rand(3, generator=shared)

        def given(generator=handed):
            yield torch.rand(3, generator=generator)

        for data in (Holds(), Streamed(closed), Streamed(given)):
            with pytest.raises(Disagreement, match="a generator of its own"):
                list(DataLoader(data, 2))

    on_ranks(script, 2)


def test_a_batch_of_tensors_comes_out_as_rows_of_which_one_rank_loaded_all():
    def script(run):
        data = Sampled(lambda n: torch.rand(40, 50))
        found = [
            (is_sharded(x), x.shape, x.local.shape)
            for x in DataLoader(data, 5, num_workers=1, drop_last=True)
        ]
        return found, run.report.of("loaders")[0].what

    (zero, said), (one, _) = on_ranks(script, 2)
    assert zero[0] == (True, (5, 40, 50), (3, 40, 50))
    assert one[0] == (True, (5, 40, 50), (2, 40, 50))
    assert (
        said == "loaded once on each node, for all of its ranks: its data set draws random numbers"
    )


def test_only_the_first_rank_has_workers():
    def script(run):
        loader = DataLoader(Sampled(noisy), 2, num_workers=2)
        iterator = iter(loader)
        next(iterator)
        return len(getattr(iterator, "_workers", ())), iterator._num_workers, len(iterator)

    assert on_ranks(script, 3) == [(2, 2, 6), (0, 2, 6), (0, 2, 6)]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("own", [False, True])
def test_draws_that_begin_late_are_noticed_said_and_shared_from_the_next_pass_on(workers, own):
    def script(run):
        rng = np.random.default_rng(0)
        late = (lambda: torch.full((2,), rng.random())) if own else (lambda: torch.rand(2))
        data = Sampled(lambda n: torch.full((2,), float(n)) + (late() if n > 3 else 0), 12)
        loader = DataLoader(data, 4, num_workers=workers, persistent_workers=workers > 0)
        for _ in range(2):
            last = [(is_sharded(x), x.tolist()) for x in loader]
        return last, [d.what for d in run.report.of("loaders")], torch.rand(1).item(), rng.random()

    zero, one = on_ranks(script, 2)
    assert zero == one
    assert len(zero[0]) == 3
    assert any("first batch did not show" in what and "each rank's own" in what for what in zero[1])
    way = "every rank loads all" if own and not workers else "loaded once on each node"
    assert any(what.startswith(way) for what in zero[1])


def test_passes_leave_no_descriptors_behind():
    def opened():
        links = set()
        for fd in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing itself
                links.add(os.readlink(f"/proc/self/fd/{fd}"))
        return links

    def script(run):
        seen = []
        for _ in range(4):
            for workers in (0, 1):
                for _ in DataLoader(Sampled(noisy), 2, num_workers=workers):
                    break
            seen.append(opened())
        return seen

    # A pass's last batches and its worker's pipes may stay until the next pass, as may what the
    # first pass sets up for good.
    for first, second, _, fourth in on_ranks(script, 2):
        assert (second - first) & fourth == set()


def test_a_loader_that_is_made_anew_for_each_pass_is_known():
    def script(run):
        data, fetched = Sampled(noisy, 8), []
        data.sample = lambda n: fetched.append(n) or noisy(n)
        for _ in range(3):
            list(DataLoader(data, 4))
        return len(fetched), [d.what for d in run.report.of("loaders")]

    (zero, said), (one, _) = on_ranks(script, 2)
    assert zero == 3 * 8
    assert one == 4  # the very first batch
    assert said == [
        "loaded once on each node, for all of its ranks: its batches hold more than numbers"
    ]


def test_the_first_rank_does_not_run_ahead_without_bounds():
    counts = torch.zeros(2, dtype=torch.int64).share_memory_()

    def script(run):
        taken = 0
        for _ in DataLoader(Sampled(lambda n: (torch.rand(1 << 18), f"{n}"), 20), 1):
            taken += 1
            counts[run.world.rank] = taken
            if run.world.rank and taken == 1:
                time.sleep(2)
                return int(counts[0])
        return taken

    found = on_ranks(script, 2)
    assert found[1] <= 4
    assert found[0] == 20  # the other one is gone, and nobody waits for it


def sent(batch):
    """Return a batch as another process has it."""
    return pickle.loads(b"".join(packed(batch, False)))


def test_a_message_holds_what_was_packed():
    same = torch.rand(300, 300)
    batch = {
        "views": [same[:, :3].clone(), torch.rand(9, 9).t()],
        "one": [same, same],
        "kinds": [
            torch.zeros(3, dtype=torch.bfloat16),
            torch.tensor([1 + 2j]).conj(),
            torch.zeros(0, 4),
        ],
        "arrays": [np.arange(30000), np.arange(4)],
        "fixed": np.frombuffer(bytes(1 << 18)),
        "tagged": torch.zeros(2),
        "rest": Pair("x", {1, 2}),
    }
    batch["tagged"].origin = "here"
    found = sent(batch)
    assert found["one"][0] is found["one"][1]
    assert found["rest"] == batch["rest"]
    for a, b in zip(batch["views"] + batch["kinds"], found["views"] + found["kinds"], strict=True):
        assert torch.equal(a, b)
        assert a.stride() == b.stride()
        assert a.dtype is b.dtype
    assert (found["arrays"][0] == batch["arrays"][0]).all()
    found["arrays"][0][0] = 7
    assert not found["fixed"].flags.writeable
    assert found["tagged"].origin == "here"


def test_a_message_of_a_view_is_without_the_rest_of_its_memory():
    data = torch.rand(1000, 1000)
    views = [data[1:3], data[:, 2:4], data[2, 3], data.bfloat16()[4:5], data.cfloat()[5:6].conj()]
    assert len(b"".join(packed(views, False))) < 100_000
    for a, b in zip(views, sent(views), strict=True):
        assert torch.equal(a, b)
        assert a.dtype is b.dtype


def test_a_batch_that_was_packed_is_gone_with_the_last_who_has_it():
    gc.disable()
    try:
        x = torch.rand(100, 100)
        sent([x])
        gone = weakref.ref(x)
        del x
        assert gone() is None  # or memory grows by every batch until the collector comes
    finally:
        gc.enable()
