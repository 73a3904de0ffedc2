import os

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from autoddp.options import Options
from autoddp.process.session import session
from autoddp.report import Report
from autoddp.view import ShardedTensor
from tests.support.ranks import run_ranks
from tests.support.training import (
    TWO_OR_THREE,
    Runs,
    Scripts,
    assert_same,
    batches,
    mlp,
    on_ranks,
    sgd,
    weights,
)

script = Scripts()


def gradients(loader, loss=F.cross_entropy, model=None):
    """After each backward, unlike the losses, which are this rank's."""
    model, found = model or mlp(), []
    optimizer = sgd(model)
    for x, y in loader:
        optimizer.zero_grad()
        loss(model(x), y).backward()
        found.append([p.grad.clone() for p in model.parameters()])
        optimizer.step()
    return found, weights(model)


class Stream(IterableDataset):
    def __init__(self):
        self.rows = [(torch.randn(5), n % 3) for n in range(11)]

    def __iter__(self):
        return iter(self.rows)


@script
def uneven_last_batch():
    return gradients(batches(11, 4))


@script
def fewer_rows_than_ranks():
    return gradients(batches(9, 2))


@script
def an_iterable():
    return gradients(DataLoader(Stream(), 4))


@script
def sparse_and_inputs():
    table, head = nn.Embedding(7, 5, sparse=True), mlp()
    for x, y in DataLoader(TensorDataset(torch.randint(7, (9,)), torch.randint(3, (9,))), 4):
        F.cross_entropy(head(table(x)), y).backward()
        F.cross_entropy(head(table(x)), y).backward(inputs=list(head.parameters()))
    return table.weight.grad.to_dense(), [p.grad for p in head.parameters()]


@pytest.fixture(scope="module")
def seen():
    return Runs(lambda nproc: script.run(nproc, **({"view": "local"} if nproc > 1 else {})))


@TWO_OR_THREE
@pytest.mark.parametrize("name", script)
def test_gradients_of_a_mean_are_those_of_the_whole_batch(seen, name, nproc):
    alone = seen[1][name][0]
    assert not alone.error, alone.error
    for rank in seen[nproc][name]:
        assert not rank.error, rank.error
        assert_same(alone.value, rank.value)


def test_each_rank_sees_plain_tensors_with_its_share():
    def script(run):
        shares = [(not isinstance(x, ShardedTensor), len(x)) for x, _ in batches(9, 4)]
        order = [
            x.flatten().tolist()
            for (x,) in DataLoader(TensorDataset(torch.arange(9)), 4, shuffle=True)
        ]
        streamed = [len(x) for x, _ in DataLoader(Stream(), 4)]
        return (
            shares,
            order,
            streamed,
            len(batches(9, 4)),
            not any(isinstance(x, ShardedTensor) for x, _ in batches()),
        )

    zero, one = on_ranks(script, 2, view="local")
    # one row goes to all
    assert zero[0] == [*one[0][:2], (True, 1)] == [(True, 2), (True, 2), (True, 1)]
    whole = on_ranks(script, 1)[0]
    assert [a + b for a, b in zip(zero[1][:2], one[1][:2], strict=True)] == whole[1][:2]
    assert zero[2] == [2, 2, 2]
    assert one[2] == [2, 2, 1]
    assert zero[3:] == (3, True)


def test_augmentation_differs_by_rank():
    class Noisy(Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, n):
            return torch.rand(())

    def script(run):
        drawn = torch.cat(list(DataLoader(Noisy(), 4)))
        return drawn.tolist(), torch.rand(()).item()

    zero, one = on_ranks(script, 2, view="local")
    assert len({*zero[0], *one[0]}) == 8
    assert zero[1] == one[1]


def test_the_job_is_the_scripts_to_see():
    def rank(group):
        before = dist.is_initialized()
        with session(group.world, Options(view="local"), group, Report()):
            seen = dist.is_initialized(), dist.get_rank(), dist.get_world_size()
            x = torch.ones(1)
            dist.all_reduce(x)
        return before, seen, x.item(), dist.is_initialized()

    assert run_ranks(rank, 2) == [(False, (True, r, 2), 2.0, False) for r in range(2)]


def test_in_the_global_view_it_is_not():
    assert (
        on_ranks(lambda run: (dist.is_initialized(), "RANK" in os.environ), 2)
        == [(False, False)] * 2
    )
