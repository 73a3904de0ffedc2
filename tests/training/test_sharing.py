"""A batch that one rank of a node loads for all: what travels, is noticed, who waits for whom."""

import collections
import io
import os
import random
import socket
import time
import typing

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from autoddp.comm import node_sockets
from autoddp.comm.sockets import near
from autoddp.errors import AutoDDPError, RankEnded
from autoddp.training.loaders import Loaders
from autoddp.training.sharing.lines import AHEAD, BATCH, ENDED, meet
from autoddp.training.sharing.memory import Memory
from autoddp.training.sharing.moves import follow, moves, raised, taken_apart
from autoddp.training.sharing.packing import pack
from autoddp.training.sharing.parcel import Parcel, Unfit
from autoddp.training.sharing.stamp import DatasetWatch, Stamp
from autoddp.view import is_sharded
from autoddp.view.generators import Generators
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
    data = torch.rand(9, 4)
    for x in DataLoader(Sampled(lambda n: data[n], 9), batch_size=None):
        x.mul_(0.5)
    kept = [torch.rand(3) for _ in range(5)]
    for x in DataLoader(Sampled(lambda n: kept[n], 5), batch_size=1, collate_fn=lambda xs: xs[0]):
        x.add_(1)
    return data, kept


@script
def state_that_begins_late():
    seen = []

    def sample(n):
        if n >= 6:
            seen.append(n)
        return torch.rand(2), f"{n}"

    lengths = [(x.sum().item(), len(seen)) for x, _ in DataLoader(Sampled(sample), 3)]
    return lengths, seen, torch.rand(2)


class Counting(IterableDataset):
    """Its state moves with the last batch only."""

    def __init__(self):
        self.passes = 0

    def __iter__(self):
        for n in range(7):
            yield torch.rand(2) + n
        self.passes += 1


@script
def a_stream_that_counts_its_passes():
    data, dropped, found = Counting(), nn.Dropout(0.5), []
    for _ in range(3):
        found += [dropped(x).sum().item() for x in DataLoader(data, 2)]
        found.append(data.passes)
    return found, torch.rand(2)


@script
def a_stream_of_a_generator_that_the_script_reads_too():
    numbers = iter(range(100))

    class Reads(IterableDataset):
        def __iter__(self):
            return (torch.tensor([float(next(numbers))]) for _ in range(6))

    return [x.tolist() for x in DataLoader(Reads(), 2)], next(numbers)


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
        "batches_that_cannot_be_pickled": "cannot be handed over",
        "batches_with_a_gradient": "need a gradient",
        "batches_that_are_the_data": "that it keeps",
        "a_stream_that_counts_its_passes": "its fetch changes Counting",
        "a_stream_of_a_generator_that_the_script_reads_too": "advances when it is read",
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
        return len(getattr(iterator, "_workers", ())), iterator._num_workers, len(iterator)

    assert on_ranks(script, 3) == [(2, 2, 6), (0, 2, 6), (0, 2, 6)]


@pytest.mark.parametrize("workers", [0, 1])
def test_draws_that_begin_late_are_noticed_said_and_shared_from_the_next_pass_on(workers):
    def script(run):
        data = Sampled(lambda n: torch.full((2,), float(n)) + (torch.rand(2) if n > 3 else 0), 12)
        loader = DataLoader(data, 4, num_workers=workers)
        for _ in range(2):
            last = [(is_sharded(x), x.tolist()) for x in loader]
        return last, [d.what for d in run.report.of("loaders")], torch.rand(1).item()

    zero, one = on_ranks(script, 2)
    assert zero == one
    assert any("not for its first sample" in what and "each rank's own" in what for what in zero[1])
    assert any(what.startswith("loaded once on each node") for what in zero[1])


def test_draws_in_the_only_pass_are_said_at_the_end():
    def script(run):
        data = Sampled(lambda n: torch.rand(2) if n > 3 else torch.ones(2), 12)
        list(DataLoader(data, 4))
        run.group.conclude()
        return any("not for its first sample" in d.what for d in run.report.of("loaders"))

    assert on_ranks(script, 2) == [True, True]


class Tallied(Dataset):
    """One that counts some samples in a way that its source does not tell."""

    def __init__(self):
        self.seen = np.zeros(12)

    def __len__(self):
        return 12

    def __getitem__(self, n):
        if n % 4 == 3:
            memoryview(self.seen)[n] = 1
        time.sleep(1e-3)  # a fetch that takes a moment, beside which a look is nothing
        return torch.tensor([float(n), self.seen.sum()])


@pytest.mark.parametrize("anew", [False, True])
def test_state_that_shows_late_is_noticed_said_and_kept_alike_from_the_next_pass_on(anew):
    def script(run):
        data = Tallied()
        loader = DataLoader(data, 4)
        for _ in range(2):
            data.seen[:] = 0  # the script's own doing is no fetch's
            loader = DataLoader(data, 4) if anew else loader
            last = [x.tolist() for x in loader]
        return last, data.seen.tolist(), [d.what for d in run.report.of("loaders")]

    (zero, seen, said), *others = on_ranks(script, 3)
    assert zero == [[[float(n), (n + 1) // 4] for n in range(k, k + 4)] for k in (0, 4, 8)]
    assert seen == [0, 0, 0, 1] * 3
    assert [other[:2] for other in others] == [(zero, seen)] * 2
    assert sum("did not show" in what and "each rank's own" in what for what in said) == 1


def test_state_in_the_only_pass_is_said_at_the_end():
    def script(run):
        list(DataLoader(Tallied(), 4))
        run.group.conclude()
        return any("did not show" in d.what for d in run.report.of("loaders"))

    assert on_ranks(script, 2) == [True, True]


def test_a_data_set_that_takes_long_to_look_at_is_loaded_by_all_as_exactly(monkeypatch):
    monkeypatch.setattr("autoddp.training.sharing.stamp.SHARE", 0.0)

    def script(run):
        seen = []

        def sample(n):
            drawn = torch.rand(2).sum().item(), np.random.randn()
            if n >= 20:
                seen.append((n, drawn))
            return n, f"{drawn}"

        found = [(words, len(seen)) for _, words in DataLoader(Sampled(sample, 40), 1)]
        return found, torch.rand(1).item(), [d.what for d in run.report.of("loaders")]

    ((*alone, _),) = on_ranks(script, 1)
    for *found, said in on_ranks(script, 2):
        assert found == alone
        assert any("takes as long as the fetch" in what for what in said)


def test_the_first_rank_does_not_run_ahead_without_bounds():
    counts = torch.zeros(2, dtype=torch.int64).share_memory_()

    def script(run):
        taken = 0
        for _ in DataLoader(Sampled(noisy, 20), 1):
            taken += 1
            counts[run.world.rank] = taken
            if run.world.rank and taken == 1:
                time.sleep(2)
                return int(counts[0])
        return taken

    found = on_ranks(script, 2)
    assert found[1] <= AHEAD + 2
    assert found[0] == 20  # the other one is gone, and nobody waits for it


def test_a_loader_that_keeps_ranks_waiting_is_named(monkeypatch):
    monkeypatch.setattr("autoddp.training.loaders.LEAST", 0.1)

    def script(run):
        data = Sampled(lambda n: time.sleep(0.02) or noisy(n), 12)
        for _ in range(2):
            list(DataLoader(data, 4))
        (loaders,) = [f.__self__ for f in run.group.at_end if isinstance(f.__self__, Loaders)]
        waited = list(loaders.waited.values())
        return (
            [d.what for d in run.report.of("waiting")],
            waited[0].seconds > 0.2,
            waited[0].share > 0.5,
        )

    (said,), slow, much = on_ranks(script, 2)[0]
    assert "with 0 workers; num_workers=" in said
    assert "--loading rows" in said
    assert slow
    assert much


def test_who_waits_for_a_rank_that_has_ended_is_told():
    def rank(group):
        lines = meet(group.rank, [0, 1], group.store)
        if group.rank == 0:
            lines.say(0, BATCH, 1, "before", [])
            lines.close()
            return ""
        assert lines.hear(0)[2] == "before"
        with pytest.raises(RankEnded, match="rank 0 has ended"):
            lines.hear(0)
        lines.close()
        return "told"

    assert run_ranks(rank, 2) == ["", "told"]


def test_the_first_rank_goes_on_where_another_one_is_gone():
    def rank(group):
        lines = meet(group.rank, [0, 1, 2], group.store)
        if group.rank == 1:
            lines.close()
        group.pg.barrier().wait()
        if group.rank == 0:
            for number in range(3):
                lines.say(0, BATCH, number, "said", [])
            lines.end(0)
            return list(lines.sockets)
        return [lines.hear(0)[0] for _ in range(4)] if group.rank == 2 else None

    assert run_ranks(rank, 3) == [[2], None, [BATCH] * 3 + [ENDED]]


def test_ranks_found_lost_as_patience_ends_are_none_that_do_not_come(monkeypatch):
    def door_at_its_end(asked):
        monkeypatch.setattr(node_sockets, "PATIENCE", 0.0)
        with near(f"\0test-{os.getpid()}", socket.SOCK_SEQPACKET) as door:
            return node_sockets._arrivals(door, b"", {1, 2}, asked)

    assert door_at_its_end(lambda rank: True) == {}
    with pytest.raises(AutoDDPError, match="rank 2 did not come"):
        door_at_its_end(lambda rank: rank == 1)


def test_a_line_works_beside_a_thousand_open_files():
    def rank(group):
        import resource

        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 4096), most))
        opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
        lines = meet(group.rank, [0, 1], group.store)
        assert all(one.fileno() > 1023 for one in lines.sockets.values())
        if group.rank == 0:
            lines.say(0, BATCH, 1, "said", [])
            while not lines.room(0, 1):
                lines.wait()
            return len(opened)
        said = lines.hear(0)[2]
        lines.took(0)
        return said

    assert run_ranks(rank, 2, timeout=30) == [1100, "said"]


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


def handed(batch, keeps=lambda x: False, apart=False, memory=None):
    parcel = pack(batch, memory or Memory(), keeps, apart)
    return Parcel.heard(parcel.said(), parcel.descriptors).open()


def test_a_parcel_holds_what_was_packed():
    same = torch.rand(50, 50)
    batch = {
        "views": [same[:, :3].clone(), torch.rand(9, 9).t()],
        "one": [same, same],
        "kinds": [
            torch.zeros(3, dtype=torch.bfloat16),
            torch.tensor([1 + 2j]).conj(),
            torch.zeros(0, 4),
        ],
        "arrays": [np.arange(3000), np.arange(4)],
        "rest": Pair("x", {1, 2}),
    }
    before = set(os.listdir("/proc/self/fd"))
    found = handed(batch)
    assert found["one"][0] is found["one"][1]
    assert found["rest"] == batch["rest"]
    for a, b in zip(batch["views"] + batch["kinds"], found["views"] + found["kinds"], strict=True):
        assert torch.equal(a, b)
        assert a.stride() == b.stride()
        assert a.dtype is b.dtype
    assert (found["arrays"][0] == batch["arrays"][0]).all()
    found["arrays"][0][0] = 7
    assert set(os.listdir("/proc/self/fd")) == before


def test_what_the_data_set_keeps_is_not_handed_over():
    data = torch.rand(5, 5)
    kept = {"x": 1}
    with pytest.raises(Unfit, match="that it keeps"):
        handed([data[2]])
    with pytest.raises(Unfit, match="a dict that it keeps"):
        handed([kept], keeps=lambda x: x is kept)
    assert handed([torch.rand(5, 5)[2]])[0].shape == (5,)


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
        TwoWords(1, 2),
    ],
    ids=lambda e: type(e).__name__,
)
def test_exceptions_are_those_that_were_raised(error):
    found = raised(taken_apart(error))
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert vars(found) == vars(error)


def test_generators_follow():
    before = Generators()
    random.random(), np.random.rand(), torch.rand(1)
    changed = moves(before)
    want = random.random(), np.random.rand(), torch.rand(1)
    before.put_back()
    follow(changed)
    assert (random.random(), np.random.rand(), torch.rand(1)) == want
    assert moves(Generators()) == {}


COUNT = 0
KEPT = []


def counts(n):
    global COUNT
    COUNT += 1


class OnItsClass:
    cache: typing.ClassVar = {}

    def __call__(self, n):
        self.cache[n] = n


class Slotted:
    __slots__ = ("n",)

    def __call__(self, n):
        self.n = n


def closure():
    kept = {}
    return lambda n: kept.setdefault(n, n)


def attribute():
    state = Sampled(None)
    return lambda n: setattr(state, "count", n)


CHANGES = {
    "a global": lambda: counts,
    "a list": lambda: lambda n: KEPT.append(n),
    "a class": OnItsClass,
    "a slot": Slotted,
    "a closure": closure,
    "an attribute": attribute,
    "a generator": lambda: np.random.default_rng(0).integers,
    "an array": lambda: functools_partial(np.copyto, np.zeros(9)),
    "a tensor": lambda: torch.zeros(3).add_,
}


def functools_partial(function, *args):
    import functools

    return functools.partial(function, *args)


@pytest.mark.parametrize("kind", CHANGES)
def test_a_stamp_tells_what_a_fetch_changes(kind):
    sample = CHANGES[kind]()
    data = Sampled(sample)
    stamp = Stamp(data)
    assert not stamp.refused
    assert stamp.moved() == ""
    sample(5)
    assert stamp.moved()


def test_a_stamp_finds_nothing_where_nothing_changes():
    table = {n: [n, {"x": torch.rand(3)}] for n in range(50)}
    data = Sampled(lambda n: (table[n][1]["x"] * 2, KEPT, np.random.rand()))
    stamp = Stamp(data)
    data[3], torch.rand(3)
    assert stamp.moved() == ""
    assert stamp.keeps(table[3][1])
    assert not stamp.keeps("x")


def test_a_stamp_refuses_what_advances():
    assert "list_iterator" in Stamp(Sampled(iter([1]).__next__)).refused
    with open(__file__) as file:
        assert "TextIOWrapper" in Stamp(Sampled(file.readline)).refused


def line_of(data):
    return float(data.lines.readline()) if data.lines else 0.0


def test_what_the_script_gives_the_data_set_later_may_advance_too():
    def script():
        data = Sampled(lambda n: (torch.tensor([n, line_of(data)]), "more than numbers"))
        data.lines, found = None, []
        for x, _ in DataLoader(data, 2):
            found.append(x.tolist())
            data.lines = data.lines or io.StringIO("".join(f"{n}\n" for n in range(12)))
        return found, data.lines.readline()

    assert on_ranks(script, 2) == on_ranks(script, 1) * 2


def test_a_watch_refuses_what_advances_as_long_as_it_is_there():
    data = Sampled([])
    look = DatasetWatch(data)
    data.lines = io.StringIO()
    look.before()
    assert "StringIO" in look.refused
    del data.lines
    look.before()
    assert not look.refused


class Interrupted(random.Random):
    """The processor is another's while this is looked at."""

    def getstate(self):
        time.sleep(0.005)
        return super().getstate()


def test_a_look_costs_what_the_processor_does_for_it():
    look = DatasetWatch(Sampled([Interrupted(1)]))
    for _ in range(10):
        look.before()
        time.sleep(0.002)
        look.after()
    assert not look.refused


def test_a_change_is_the_fetchs_if_it_comes_between_the_two_looks():
    data = Sampled([])
    look = DatasetWatch(data)
    data.script = 1
    look.before()
    data.fetch = 2
    assert "Sampled" in look.after()
    look.before()
    assert not look.after()
