"""A batch that one rank of a node loads for all: what travels, is noticed, who waits for whom."""

import collections
import gc
import os
import random
import socket
import threading
import time
import types
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from autoddp.comm import control_plane
from autoddp.comm.outcome import Outcome
from autoddp.errors import RankEnded
from autoddp.training.loading.link import connect
from autoddp.training.loading.message import Message, received
from autoddp.view import is_sharded
from tests.support.ranks import run_ranks
from tests.support.training import TWO_OR_THREE, Runs, Scripts, assert_as_alone, on_ranks

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


class Graph:
    """An object of a user's own, with tensors."""

    def __init__(self, n):
        self.x, self.edges, self.name = (
            torch.rand(n + 1, 50),
            [torch.arange(n), np.arange(900.0) + n],
            f"g{n}",
        )


def noisy(n):
    return torch.rand(3) + n, random.random(), f"{n}"


def values(batches):
    return [[x.tolist() if isinstance(x, torch.Tensor) else x for x in batch] for batch in batches]


@script
def drawn_in_process_and_in_workers():
    found = [
        values(DataLoader(Sampled(noisy), 4, shuffle=True, num_workers=workers))
        for workers in (0, 2)
    ]
    return found, torch.rand(3), random.random(), float(np.random.rand())


@script
def a_generator_of_the_loaders_own():
    own = torch.Generator().manual_seed(4)
    loader = DataLoader(Sampled(noisy), 4, shuffle=True, num_workers=1, generator=own)
    return values(loader), values(loader), torch.rand(2, generator=own), torch.rand(2)


@script
def objects_with_tensors():
    collate = lambda graphs: {"all": graphs, "first": graphs[0].x}  # noqa: E731
    found = []
    for workers in (0, 2):
        for batch in DataLoader(Sampled(Graph), 3, collate_fn=collate, num_workers=workers):
            batch["first"].mul_(2)  # they are one tensor
            found.append([(g.name, g.x.sum().item(), g.edges[1].sum()) for g in batch["all"]])
    return found


@script
def what_is_written_into_a_batch_stays_a_ranks_own():
    found = []
    for workers in (0, 2):
        loader = DataLoader(Sampled(lambda n: (torch.rand(99, 99), f"{n}")), 4, num_workers=workers)
        for x, _ in loader:
            x.add_(1)
            found.append(x.sum().item())
    return found


@script
def batches_that_cannot_be_pickled():
    class Local:
        def __init__(self, samples):
            self.total = lambda: sum(x.sum() for x in samples)

    loader = DataLoader(Sampled(lambda n: torch.rand(2)), 2, collate_fn=Local)
    return [batch.total().item() for _ in range(2) for batch in loader], torch.rand(2)


@script
def batches_with_a_gradient():
    net = nn.Linear(3, 2)
    loader = DataLoader(
        Sampled(lambda n: torch.rand(3)), 4, collate_fn=lambda xs: net(torch.stack(xs))
    )
    for out in loader:
        out.sum().backward()
    return net.weight.grad


@script
def batches_that_are_the_data():
    data, found = torch.rand(9, 4), []
    for _ in range(2):
        for x in DataLoader(Sampled(lambda n: data[n], 9), batch_size=None):
            x.mul_(0.5)
            found.append(x.tolist())
    return found


@script
def own_collate_and_a_generator_of_its_own():
    rng, found = np.random.default_rng(4), []
    data = Sampled(lambda n: torch.full((2,), rng.random()) if n > 2 else torch.rand(2))
    for workers in (0, 1):
        loader = DataLoader(data, 2, num_workers=workers, collate_fn=torch.stack)
        found += [x.tolist() for x in loader]
    return found, rng.random(), torch.rand(2)


class Buffered(IterableDataset):
    """A stream shuffled in a buffer, as Hugging Face's are."""

    def __iter__(self):
        rng, kept = np.random.default_rng(7), []
        for n in range(13):
            kept.append({"x": torch.rand(3) + n, "n": n})
            if len(kept) > 3:
                yield kept.pop(rng.integers(len(kept)))
        yield from kept


@script
def streams():
    found = []
    for workers in (0, 1):
        for batch in DataLoader(Buffered(), 4, num_workers=workers):
            found.append((batch["x"].tolist(), batch["n"].tolist()))
        found += [x["n"] for x in DataLoader(Buffered(), batch_size=None, num_workers=workers)]
    return found, torch.rand(2)


@script
def a_stream_without_an_end():
    class Endless(IterableDataset):
        def __iter__(self):
            while True:
                yield torch.rand(2)

    stream, found = iter(DataLoader(Endless(), 3)), []
    for _ in range(7):
        found.append(next(stream).tolist())
    return found, torch.rand(2)


@script
def many_tensors_and_long_words():
    sample = lambda n: (  # noqa: E731
        [torch.rand(2000) for _ in range(90)],
        "word " * 9000,
        [torch.rand(1)] * 300,
    )
    found = []
    for workers in (0, 1):
        for x, words, _ in DataLoader(
            Sampled(sample, 3), 1, num_workers=workers, collate_fn=lambda b: b[0]
        ):
            found.append((sum(t.sum().item() for t in x), len(words)))
    return found


@script
def persistent_workers_with_a_sampler_that_draws():
    class Draws(torch.utils.data.Sampler):
        taken = 0

        def __iter__(self):
            for _ in range(8):
                self.taken += 1
                yield int(torch.randint(11, ()))

        def __len__(self):
            return 8

    sampler = Draws()
    kept = DataLoader(
        Sampled(noisy),
        2,
        sampler=sampler,
        num_workers=1,
        persistent_workers=True,
        prefetch_factor=2,
    )
    found = [values(kept)]
    for _ in kept:
        found.append(sampler.taken)
        break
    return found, values(kept), sampler.taken, torch.rand(2)


@script
def loaders_beside_each_other_that_end_apart():
    found = []
    for workers in (0, 2):
        short = DataLoader(Sampled(noisy, 5), 2, shuffle=True, num_workers=workers)
        long = DataLoader(Sampled(noisy), 1, num_workers=workers, persistent_workers=workers > 0)
        for a, b in zip(short, short, strict=True):
            found.append((a[0].sum().item(), b[2]))
        found += [(a[2], b[0].sum().item()) for a, b in zip(long, short, strict=False)]
        for n, batch in enumerate(long):
            found.append(batch[1].tolist())
            if n == 2:
                break
        try:
            for _ in short:
                found.append(next(iter(long))[2])
                raise KeyError("in the body")
        except KeyError:
            found += values(short)
        left = iter(short)
        next(left)
        found.append([x[2] for x in long])
        found += values(left)
        found.append(torch.rand(2))
    return found, random.random()


@script
def ignored_targets_among_rows_that_were_drawn():
    net = nn.Linear(3, 4)
    data = Sampled(lambda n: (torch.rand(3), torch.tensor(-100 if n in (1, 2, 7) else n % 4)))
    for workers in (0, 1):
        for x, y in DataLoader(data, 6, num_workers=workers):
            nn.functional.cross_entropy(net(x), y).backward()
            y[0] = -100
            nn.functional.cross_entropy(net(x), y).backward()
    return net.weight.grad


@script
def evaluation_amid_a_pass_again_and_again():
    train = DataLoader(Sampled(noisy), 3, shuffle=True, num_workers=2)
    test = DataLoader(Sampled(noisy, 4), 4)
    return [(x.sum().item(), [y.sum().item() for y, *_ in test]) for x, *_ in train], torch.rand(1)


@pytest.fixture(scope="module")
def seen():
    return Runs(lambda nproc: script.run(nproc))


@TWO_OR_THREE
@pytest.mark.parametrize("name", script)
def test_batches_are_those_of_one_process(seen, name, nproc):
    assert_as_alone(seen[1][name][0], seen[nproc][name])


@pytest.mark.parametrize(
    ("name", "why"),
    {
        "batches_that_cannot_be_pickled": "cannot be sent to other ranks",
        "batches_with_a_gradient": "need a gradient",
        "own_collate_and_a_generator_of_its_own": "from a generator of its own",
    }.items(),
)
def test_why_every_rank_loads_all(seen, name, why):
    assert seen[2][name][0].said("loaders", "every rank loads all", why), seen[2][name][0].decisions


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
        loader = DataLoader(data, 4, num_workers=workers)
        for _ in range(2):
            last = [(is_sharded(x), x.tolist()) for x in loader]
        return last, [d.what for d in run.report.of("loaders")], torch.rand(1).item(), rng.random()

    zero, one = on_ranks(script, 2)
    assert zero == one
    assert any("first batch did not show" in what and "each rank's own" in what for what in zero[1])
    way = "every rank loads all" if own and not workers else "loaded once on each node"
    assert any(what.startswith(way) for what in zero[1])


def test_draws_in_the_only_pass_are_said_at_the_end():
    def script(run):
        data = Sampled(lambda n: torch.rand(2) if n > 3 else torch.ones(2), 12)
        list(DataLoader(data, 4))
        run.group.conclude()
        return sum("first batch did not show" in d.what for d in run.report.of("loaders"))

    assert on_ranks(script, 2) == [1, 1]


def test_a_loader_that_is_made_anew_for_each_pass_is_known():
    def script(run):
        data, fetched = Sampled(noisy, 8), []
        data.sample = lambda n: fetched.append(n) or noisy(n)
        for _ in range(3):
            list(DataLoader(data, 4))
        return len(fetched), [d.what for d in run.report.of("loaders")]

    (zero, said), (one, _) = on_ranks(script, 2)
    assert zero == 3 * 8
    assert one == 2  # its rows of the very first batch
    assert said == [
        "loaded once on each node, for all of its ranks: its batches hold more than numbers"
    ]


def test_what_a_data_set_does_it_does_once_on_the_first_rank():
    def script(run):
        kept = []

        def sample(n):
            kept.append(n)
            return torch.rand(3) + n, f"{n}"

        found = values(DataLoader(Sampled(sample), 4, shuffle=True))
        return found, kept

    alone, zero = on_ranks(script, 1)[0], on_ranks(script, 2)[0]
    assert zero == alone


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


class Pass:
    """A pass as the connections know it."""

    def __init__(self):
        self.messages = collections.deque()


def linked(group):
    link = connect(types.SimpleNamespace(group=group, world=group.world))
    one = Pass()
    return link, one, link.begin(one)


def send(link, number, said):
    message = number, said
    link.send(lambda rank: message, False)


def test_who_waits_for_a_rank_that_has_ended_is_told():
    def rank(group):
        link, one, number = linked(group)
        if group.rank == 0:
            send(link, number, "before")
            link.close()
            return ""
        assert link.receive(one) == "before"
        with pytest.raises(RankEnded, match="rank 0 has ended"):
            link.receive(one)
        return "told"

    assert run_ranks(rank, 2) == ["", "told"]


def test_a_child_of_a_rank_does_not_keep_its_connections():
    def rank(group):
        link, one, _ = linked(group)
        if group.rank == 0:
            child = os.fork()
            if not child:
                time.sleep(60)
                os._exit(0)
            group.pg.barrier().wait()
            link.close()
            group.pg.barrier().wait()
            os.kill(child, 9)
            os.waitpid(child, 0)
            return ""
        group.pg.barrier().wait()
        with pytest.raises(RankEnded):
            link.receive(one)
        group.pg.barrier().wait()
        return "told"

    assert run_ranks(rank, 2, timeout=40) == ["", "told"]


def test_the_first_rank_goes_on_where_another_one_is_gone():
    def rank(group):
        link, one, number = linked(group)
        if group.rank == 1:
            link.close()
        group.pg.barrier().wait()
        if group.rank == 0:
            for n in range(3):
                send(link, number, n)
            return list(link.sockets)
        return [link.receive(one) for _ in range(3)] if group.rank == 2 else None

    assert run_ranks(rank, 3) == [[2], None, [0, 1, 2]]


def test_threads_that_read_two_passes_find_their_own_messages():
    def rank(group):
        link, one, first = linked(group)
        other = Pass()
        second = link.begin(other)
        if group.rank == 0:
            for n in range(200):
                send(link, first if n % 3 else second, n)
            return None
        found = []
        reader = threading.Thread(
            target=lambda: found.extend(link.receive(one) for _ in range(133))
        )
        reader.start()
        mine = [link.receive(other) for _ in range(67)]
        reader.join()
        return mine == list(range(0, 200, 3)), found == [n for n in range(200) if n % 3]

    assert run_ranks(rank, 2, timeout=30)[1] == (True, True)


def test_a_message_for_a_pass_that_is_to_begin_waits_for_it():
    """A thread of the script's reads one pass, while the first rank has begun another."""

    def rank(group):
        link, one, first = linked(group)
        if group.rank == 0:
            other = Pass()
            send(link, link.begin(other), "early")
            send(link, first, "now")
            return None
        heard, other = link.receive(one), Pass()
        link.begin(other)
        return heard, link.receive(other)

    assert run_ranks(rank, 2, timeout=30)[1] == ("now", "early")


def test_messages_for_a_pass_that_is_gone_are_dropped():
    def rank(group):
        link, one, first = linked(group)
        link.begin(Pass())  # nobody holds it
        gone = first + 1
        if group.rank == 0:
            send(link, gone, "nobody's")
            send(link, first, "mine")
            return None
        return link.receive(one), gone in link._passes, link._early

    assert run_ranks(rank, 2) == [None, ("mine", False, {})]


def test_a_rank_that_does_not_reach_the_first_leaves_all_of_them_apart(monkeypatch):
    def rank(group):
        if group.rank == 1:  # as in another container, where nobody listens at that name
            monkeypatch.setattr(control_plane, "_dial", lambda *given: refuse())
        return connect(types.SimpleNamespace(group=group, world=group.world))

    def refuse():
        raise ConnectionRefusedError

    assert run_ranks(rank, 3, timeout=30) == [None] * 3


def test_an_exception_may_hold_much():
    def script(run):
        def sample(n):
            if n == 5:
                raise ValueError("x" * 900_000, torch.rand(1).item())
            return torch.rand(3)

        found = []
        for workers in (0, 1):
            try:
                for x in DataLoader(Sampled(sample), 2, num_workers=workers):
                    found.append(x.sum().item())
            except ValueError as error:
                found.append(len(str(error)) > 900_000)
        return found, torch.rand(1).item()

    zero, one = on_ranks(script, 2)
    assert zero == one
    assert zero[0].count(True) == 2


def handed(batch, **given):
    """Return a batch as another process has it, and its message."""
    here, there = socket.socketpair()
    with here, there:
        message = Message(batch, False, **given)
        sender = threading.Thread(target=message.send, args=(here,))
        sender.start()
        found = received(there)
        sender.join()
    return found, message


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
    before = set(os.listdir("/proc/self/fd"))
    found, _ = handed(batch)
    assert set(os.listdir("/proc/self/fd")) == before
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


def test_a_part_of_a_large_tensor_travels_alone():
    large = torch.rand(1 << 20)
    found, message = handed([large[:9], large[-50000:]])
    assert torch.equal(found[1], large[-50000:])
    assert [part.raw.nbytes for part in message.parts] == [200000]
    assert len(message.body) < 5000


def test_rows_of_shared_memory_are_mapped_and_what_is_written_there_stays_the_receivers():
    whole = torch.rand(6, 20000).share_memory_()
    want, before = whole.clone(), set(os.listdir("/proc/self/fd"))
    found, message = handed([whole[2:4], whole[:, :1]], mapped=True)
    assert [part.descriptor >= 0 for part in message.parts] == [True]
    assert torch.equal(found[0], want[2:4])
    found[0].zero_()
    assert torch.equal(whole, want)
    del message
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_batch_that_was_packed_is_gone_with_the_last_who_has_it():
    gc.disable()
    try:
        x = torch.rand(100, 100)
        handed([x])
        gone = weakref.ref(x)
        del x
        assert gone() is None  # or memory grows by every batch until the collector comes
    finally:
        gc.enable()


class TwoWords(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")
        self.a, self.b = a, b


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x", 3),
        KeyError("k"),
        StopIteration(),
        FileNotFoundError(2, "no", "f"),
        UnicodeDecodeError("utf-8", b"x", 0, 1, "no"),
        TwoWords(1, 2),
        KeyError(torch._utils.KeyErrorMessage("as a worker raises it\nin lines")),
    ],
    ids=lambda e: type(e).__name__,
)
def test_exceptions_are_those_that_were_raised(error):
    found = Outcome.from_bytes(Outcome(error=error).to_bytes()).error
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert vars(found) == vars(error)
