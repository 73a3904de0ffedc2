import collections
import os
import random
import threading
import time

import numpy as np
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
)

from autoddp.errors import Disagreement
from autoddp.view import ShardedTensor, is_sharded
from tests.support.training import (
    TWO_OR_THREE,
    DrawsBetween,
    Scripts,
    assert_as_alone,
    batches,
    mlp,
    on_ranks,
    rows,
    train,
    weights,
)

script = Scripts()


def draws():
    """Where the generators stand."""
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def order(loader):
    """What the batches hold, read."""
    return [[x.tolist() if isinstance(x, torch.Tensor) else x for x in batch] for batch in loader]


class Listed(Dataset):
    """A data set that a user wrote."""

    def __init__(self, count=11, sample=None):
        self.count, self.sample = count, sample or (lambda n: (torch.arange(3.0) + n, n % 3))

    def __len__(self):
        return self.count

    def __getitem__(self, n):
        return self.sample(n)


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(torch.arange(3.0) + n, n % 3) for n in range(10)])


@script
def two_shuffled_epochs_and_the_generators_after():
    loader = batches(22, 8)
    model = mlp()
    return (
        train(model, loader, 2),
        weights(model),
        draws(),
        len(loader),
        loader.batch_size,
        loader.num_workers,
    )


@script
def a_generator_of_the_loaders_own():
    own = torch.Generator().manual_seed(5)
    loader = batches(11, 4, generator=own)
    return order(loader), order(loader), draws(), float(torch.rand((), generator=own))


@script
def a_generator_that_the_data_set_holds():
    class Noisy(Listed):
        def __init__(self, rng, draw):
            super().__init__()
            self.rng, self.draw = rng, draw

        def __getitem__(self, n):
            return torch.full((2,), n + self.draw(self.rng))

    generators = {
        torch.Generator().manual_seed(3): lambda g: float(torch.rand((), generator=g)),
        np.random.default_rng(3): lambda g: g.random(),
        np.random.RandomState(3): lambda g: g.rand(),
        random.Random(3): lambda g: g.random(),
    }
    found = []
    for rng, draw in generators.items():
        data = Noisy(rng, draw)
        for workers, collate in ((0, None), (0, None), (0, list), (0, list), (1, None)):
            found += order(DataLoader(data, 4, True, num_workers=workers, collate_fn=collate))
        found.append(draw(rng))
    return found, draws()


@script
def strings_in_a_batch():
    return order(DataLoader(Listed(sample=lambda n: (torch.arange(2.0) + n, f"name {n}")), 4))


@script
def dictionaries_tuples_and_numbers():
    Pair = collections.namedtuple("Pair", "x y")
    data = Listed(
        sample=lambda n: {"x": np.arange(2.0) + n, "more": Pair(n, torch.tensor(float(n)))}
    )
    return [
        (b["x"].tolist(), b["more"].x.tolist(), b["more"].y.tolist()) for b in DataLoader(data, 4)
    ]


@script
def an_iterable_data_set():
    model = mlp(3)
    return train(model, DataLoader(Stream(), 4)), weights(model)


@script
def a_batch_changed_in_place_leaves_the_data_alone():
    data = rows(9)
    for x, _ in DataLoader(data, 4):
        x.mul_(0)
    return data.tensors[0]


@script
def an_empty_loader():
    return order(DataLoader(rows(3), 4, drop_last=True)), draws()


def in_a_thread(loader):
    found = []
    thread = threading.Thread(target=lambda: found.extend(order(loader)))
    thread.start()
    thread.join()
    return found


@script
def persistent_workers_of_a_thread_and_of_the_script():
    listed = Listed(sample=lambda n: f"name {n} {torch.rand(())}")  # loaded by one rank
    found = []
    for data in rows(10), listed:
        for first in in_a_thread, order:
            loader = DataLoader(data, 4, True, num_workers=1, persistent_workers=True)
            found += [len(first(loader)), in_a_thread(loader) if data is not listed else 0]
            found += [order(loader) if data is not listed else len(order(loader)), draws()]
            found += [len(in_a_thread(loader))]
    return found


@script
def a_first_batch_that_cannot_be_fetched():
    def sample(n):
        if n == 1:
            raise KeyError(n)
        return torch.full((2,), float(n))

    stream, found = iter(DataLoader(Listed(10, sample), 4)), []
    for _ in range(4):
        try:
            found.append(next(stream, None))
        except KeyError as error:
            found.append(str(error))
    return found


NOT_BY_ROWS = {
    "a_generator_that_the_data_set_holds": "from a generator of its own",
    "strings_in_a_batch": "more than numbers",
    "an_iterable_data_set": "an iterable",
}


@TWO_OR_THREE
@pytest.mark.parametrize("name", script)
def test_batches_are_those_of_one_process(seen, name, nproc):
    assert_as_alone(seen[1][name][0], seen[nproc][name])


@pytest.mark.parametrize("name", NOT_BY_ROWS)
def test_why_a_loader_is_not_fetched_by_rows(seen, name):
    assert seen[2][name][0].said("loaders", NOT_BY_ROWS[name]), seen[2][name][0].decisions


def test_tensors_in_memory_are_fetched_by_rows(seen):
    assert seen[2]["two_shuffled_epochs_and_the_generators_after"][0].said(
        "loaders", "fetches its rows"
    )
    assert seen[2]["dictionaries_tuples_and_numbers"][0].said("loaders", "fetches its rows")


def test_numbers_of_another_type_are_refused_where_the_first_row_of_a_batch_decides():
    def script(run):
        data = Listed(12, lambda n: (torch.ones(2), 0.5 if n in (7, 10) else 1))
        with pytest.raises(Disagreement, match="another type than its first batch"):
            order(DataLoader(data, 6))

    on_ranks(script, 2)


def test_an_error_of_one_ranks_sample_is_not_passed_by():
    def script(run):
        def sample(n):
            if n == 7:
                raise ValueError("it cannot be read")
            return torch.ones(2)

        batches, errors = iter(DataLoader(Listed(12, sample), 6)), []
        while True:
            try:
                next(batches)
            except StopIteration:
                return errors
            except Exception as error:  # as scripts do that leave a broken sample out
                errors.append(f"{type(error).__name__}: {error}")

    zero, one = on_ranks(script, 2)
    assert one == []
    assert zero[0] == "ValueError: it cannot be read"
    assert "a sample raised ValueError (it cannot be read), and the script went on" in zero[1]
    assert len(zero) == 2


def test_each_rank_fetches_its_rows_only():
    def script(run):
        fetched = []

        def sample(n):
            fetched.append(n)
            return torch.tensor([float(n)]), n

        loader = DataLoader(Listed(10, sample), 5)
        for x, y in loader:
            assert is_sharded(x)
            assert type(x) is ShardedTensor
            assert x.shape == (5, 1)
            assert y.shape == (5,)
        first = fetched.copy()
        fetched.clear()
        local = [x.local.flatten().tolist() for x, _ in loader]
        return first, fetched, local, x.sizes.per_rank

    assert on_ranks(script, 2) == [
        # of the first batch of all, every rank looks at every sample
        ([0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 5, 6, 7], [[0, 1, 2], [5, 6, 7]], (3, 2)),
        ([0, 1, 2, 3, 4, 8, 9], [3, 4, 8, 9], [[3, 4], [8, 9]], (3, 2)),
    ]


def test_workers_are_divided_over_the_ranks_and_request_as_many_batches_ahead():
    def script(run):
        loader = DataLoader(Listed(9), 4, num_workers=4)
        own = DataLoader(Listed(9), 4, sampler=DrawsBetween(9), num_workers=4)
        odd = DataLoader(Listed(9), 4, num_workers=3)
        found = [(i._num_workers, i._prefetch_factor) for i in map(iter, (loader, own, odd))]
        return found, loader.num_workers, loader.prefetch_factor

    enough = len(os.sched_getaffinity(0)) > 5
    want = [(4, 2), (4, 2), (3, 2)] if enough else [(2, 4), (2, 4), (2, 3)]
    assert on_ranks(script, 2) == [(want, 4, 2)] * 2


def augmented():
    noise = lambda n: (torch.arange(3.0) + torch.rand(()) + random.random() + np.random.rand(), n)  # noqa: E731
    return Listed(12, noise)


def test_samples_drawn_by_rows_differ_by_rank_and_the_generators_stay_equal():
    def script(run):
        loader = DataLoader(augmented(), 4, shuffle=True)
        local = [x.local[:, 0] for x, _ in loader]
        after = draws()
        workers = DataLoader(augmented(), 4, shuffle=True, num_workers=2)
        local += [x.local[:, 0] for x, _ in workers]
        return torch.cat(local), after, draws()

    zero, one = on_ranks(script, 2, loading="rows")
    assert zero[1:] == one[1:]
    drawn = torch.cat([zero[0], one[0]])
    # nothing is drawn twice, on no rank, in no worker
    assert len(drawn.unique()) == len(drawn) == 24
    again = on_ranks(script, 2, loading="rows")
    assert torch.equal(again[0][0], zero[0])  # a seeded script repeats itself


def test_strings_under_loading_rows_leave_the_generators_alone():
    def script(run):
        return strings_in_a_batch(), draws()

    (alone,) = on_ranks(script, 1)
    assert on_ranks(script, 2, loading="rows") == [alone] * 2


class SlowFirst(Dataset):
    """Samples of which the first takes longer than all others."""

    def __len__(self):
        return 8

    def __getitem__(self, n):
        time.sleep(0.4 if n == 0 else 0)
        return n


def test_ranks_that_load_all_get_the_batches_in_one_order():
    def script(run):
        loader = DataLoader(SlowFirst(), 2, num_workers=2, in_order=False)
        return [x.tolist() for x in loader], loader.in_order

    assert on_ranks(script, 2, loading="each") == [([[0, 1], [2, 3], [4, 5], [6, 7]], False)] * 2


@pytest.mark.parametrize("loading", ["auto", "each"])
def test_samples_that_are_drawn_are_those_of_one_process(loading):
    def script(run):
        found = order(DataLoader(augmented(), 4, shuffle=True))
        model = mlp(3, 12)
        return found, train(model, DataLoader(augmented(), 5, shuffle=True, num_workers=1)), draws()

    alone = on_ranks(script, 1)[0]
    for found in on_ranks(script, 3, loading=loading):
        assert found[0] == alone[0]
        assert found[1] == pytest.approx(alone[1], rel=1e-9)
        assert found[2] == alone[2]
