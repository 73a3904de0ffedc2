"""Memory of batches that one rank loads for all: what is shared, reused, whose rows lie where."""

import gc
import os
import types
import weakref

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from autoddp.training.sharing.memory import Again, Lent, Maps, Memory, nameless, read
from autoddp.training.sharing.packing import pack
from autoddp.training.sharing.parcel import Parcel
from tests.support.training import Scripts, assert_as_alone, on_ranks

script = Scripts()


class Images(Dataset):
    """Drawn; large enough for memory of their own."""

    def __init__(self, held=tuple, count=14):
        self.held, self.count = held, count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        return self.held((torch.rand(60, 90) + i, torch.full((50, 50), i), i))


class Judging(dict):
    """A container of a user's own that looks at what it is to hold."""

    def __init__(self, values=()):
        super().__init__(values if isinstance(values, dict) else zip("xy", values, strict=False))

    def __setitem__(self, key, value):
        super().__setitem__(key, value.clamp(max=3))

    def update(self, values):
        for key in values:
            self[key] = values[key]


def sums(loader):
    found, kept = [], []
    for x, y, number in loader:
        kept.append(x)
        x.add_(1)
        y[y == 3] = -100
        found.append((x.sum().item(), y.float().sum().item(), y.stride(), number.tolist()))
    return found, [x.sum().item() for x in kept]


@script
def kept_and_written_to():
    return [sums(DataLoader(Images(), 4, shuffle=True, num_workers=workers)) for workers in (0, 2)]


@script
def in_a_container_of_its_own():
    batches = list(DataLoader(Images(Judging), 4))
    return [(type(b).__name__, b["x"].sum().item(), b["y"].sum().item()) for b in batches]


def test_batches_are_those_of_one_process():
    alone = script.run(1)
    for nproc in (2, 3):
        seen = script.run(nproc)
        for name in script:
            assert_as_alone(alone[name][0], seen[name])


def cut(total):
    """For the first of two ranks."""
    half = -(-total // 2)
    take = lambda x, _: x[:half]  # noqa: E731
    return types.SimpleNamespace(offset=0, local=half, smallest=total // 2, take=take)


def test_what_is_missing_is_told_and_not_waited_for():
    descriptor = nameless(4)
    whole = bytearray(b"--------")
    with pytest.raises(EOFError, match="4 of 8 bytes"):
        read(descriptor, memoryview(whole), 0)
    read(descriptor, memoryview(whole)[:3], 1)
    os.close(descriptor)
    assert whole == b"\0\0\0\0----"


def samples():
    return [(torch.rand(3, 90, 90), n, "name") for n in range(4)]


def begun(behind=lambda: 0):
    memory = Memory(behind)
    assert type(memory.collate(samples())[0]) is torch.Tensor  # as in one process
    memory.given()
    return memory


def handed(batch, memory, maps):
    parcel = pack(batch, memory, lambda _: False, False, True)
    found = Parcel.heard(parcel.said(), parcel.descriptors).open(maps)
    memory.given()
    return found


def test_batches_are_collated_into_the_memory_that_is_handed_over():
    memory, maps = begun(), Maps()
    made = samples()
    batch = memory.collate(made)
    want = torch.stack([x for x, *_ in made])
    found = handed(batch, memory, maps)
    assert type(found[0]) is Lent
    assert torch.equal(batch[0].whole(), want)
    assert torch.equal(found[0].whole(), want)
    assert torch.equal(found[0].rows(cut(4), Again()), want[:2])
    assert found[1].tolist() == [0, 1, 2, 3]
    assert found[2] == ("name",) * 4


def test_the_first_rank_has_its_own_rows_apart_from_the_others():
    memory, maps = begun(), Maps()
    memory.cut = cut
    made = samples()
    batch = memory.collate(made)
    found = handed(batch, memory, maps)
    want = torch.stack([x for x, *_ in made])
    own = batch[0].rows(cut(4), memory.again)
    assert torch.equal(own, want[:2])
    assert torch.equal(found[0].laid[2:], want[2:])
    assert not found[0].laid[:2].any()  # nobody but the first rank needs them
    assert torch.equal(batch[0].whole(), want)
    own.zero_()
    # what was written into a rank's own rows is that rank's
    assert torch.equal(found[0].laid, want)


def test_pages_are_used_again_when_all_have_taken_what_was_there():
    late = [0]
    memory, maps = begun(lambda: late[0]), Maps()
    places = []
    for late[0] in (0, 0, 1, 1, 2, 2, 2, 0, 0):
        batch = memory.collate(samples())
        places.append(batch[0].laid.data_ptr())
        handed(batch, memory, maps)
    assert len(set(places[:2])) == 1
    assert all(len(set(places[n - 2 : n + 1])) == 3 for n in (4, 5, 6))  # two are still read
    assert len(set(places)) == 3  # and no more than that are ever held
    assert len(memory.live()) == len(maps._maps) == 3


def test_pages_of_batches_that_come_no_more_are_unmapped():
    memory, maps = begun(), Maps()
    handed(memory.collate(samples()), memory, maps)
    handed(memory.collate([(torch.rand(3, 80, 90), n, "name") for n in range(4)]), memory, maps)
    assert len(maps._maps) == 1


def test_a_rank_s_own_memory_is_used_again_when_no_tensor_lies_there():
    again = Again()
    first = again.empty((100, 1000), torch.float32)
    place, part = first.data_ptr(), first[3:].numpy()
    del first
    second = again.empty((100, 1000), torch.float32)
    assert second.data_ptr() != place  # numpy still has a part
    del part
    assert again.empty((1000, 100), torch.int32).data_ptr() == place
    assert again.empty((10,), torch.int32).shape == (10,)


def test_a_batch_that_was_handed_over_is_gone_with_the_last_who_has_it():
    gc.disable()
    try:
        x = torch.rand(100, 100)
        parcel = pack([x], Memory(), lambda _: False, False)
        parcel.close()
        gone = weakref.ref(x)
        del x, parcel
        assert gone() is None  # or memory grows by every batch until the collector comes
    finally:
        gc.enable()


def test_what_workers_collated_stays_where_it_is():
    def ranks_rows(run):
        x, y, _ = next(iter(DataLoader(Images(count=8), 8, num_workers=1)))
        sizes = [t.local.untyped_storage().nbytes() // t.local.element_size() for t in (x, y)]
        return x.local.is_contiguous(), *sizes

    for contiguous, large, targets in on_ranks(ranks_rows, 2):
        assert contiguous
        assert large == 8 * 60 * 90  # a view of the batch that is shared
        assert targets == 4 * 50 * 50  # copied: every rank counts what is ignored among them all
