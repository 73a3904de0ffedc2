"""An optimizer whose state is shared out over ranks: against one process."""

import copy
import pickle

import pytest
import torch
from torch.nn import functional as F
from torch.optim.lr_scheduler import StepLR

from autoddp.errors import BadInput
from autoddp.options import Options
from tests.support.training import Scripts, assert_same, batches, mlp, on_ranks, sgd, train, weights

pytestmark = pytest.mark.slow

RANKS = (2, 3, 5)  # the last ones are more than there are parameters
script = Scripts()


def groups(model):
    return [{"params": model[0].parameters(), "lr": 0.02}, {"params": model[2].parameters()}]


def trained(model, optimizer):
    """With a scheduler, and from a checkpoint of its own in the middle."""
    scheduler, loader = StepLR(optimizer, 1, 0.5), batches()
    losses = train(model, loader, 1, optimizer)
    scheduler.step()
    saved = pickle.loads(pickle.dumps(optimizer.state_dict()))
    losses += train(model, loader, 1, optimizer)
    optimizer.load_state_dict(copy.deepcopy(saved))  # else steps would change what is saved
    losses += train(model, loader, 1, optimizer)
    return losses, weights(model), saved, optimizer.state_dict(), type(optimizer).__name__


@script
def momentum():
    model = mlp()
    return trained(model, sgd(model, momentum=0.9))


@script
def adam_with_groups():
    model = mlp()
    return trained(model, torch.optim.Adam(groups(model), 0.01, amsgrad=True))


@script
def one_that_runs_whole():
    model = mlp()
    return trained(model, torch.optim.Adagrad(model.parameters(), 0.1))


@script
def a_closure_and_a_group_that_is_added():
    model, more, losses = mlp(), mlp(3), []
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    for n, (x, y) in enumerate(batches()):

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = F.cross_entropy(more(model(x)), y)
            loss.backward()
            return loss

        losses.append(optimizer.step(closure).item())
        if not n:
            optimizer.add_param_group({"params": more.parameters(), "lr": 0.1})
    return losses, weights(model, more), optimizer.state_dict(), [p.grad for p in more.parameters()]


@script
def copies():
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    losses = train(model, batches(), 1, optimizer)
    second, other = copy.deepcopy((model, optimizer))
    losses += train(second, batches(), 1, other)
    third = pickle.loads(pickle.dumps(other))
    return losses, weights(model, second), third.state_dict()


@pytest.fixture(scope="module")
def seen():
    return {1: script.run(1)} | {ranks: script.run(ranks, shard_optimizer=True) for ranks in RANKS}


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", script)
def test_all_is_as_in_one_process(seen, name, ranks):
    alone = seen[1][name][0]
    assert not alone.error, alone.error
    for rank in seen[ranks][name]:
        assert not rank.error, rank.error
        assert_same(alone.value, rank.value, 1e-12)
    said = seen[ranks][name][0].said("sharding", "Adagrad", "whole on every rank")
    assert said == (name == "one_that_runs_whole")


@pytest.mark.parametrize("view", ["global", "local"])
def test_each_rank_keeps_its_share(view):
    def script(run):
        model = mlp()
        every = list(model.parameters())
        optimizer = torch.optim.Adam(every, 0.01)
        train(model, batches(20, 4), 1, optimizer)
        kept = [n for n, p in enumerate(every) if p in optimizer.state]
        optimizer.load_state_dict(optimizer.state_dict())
        again = [n for n, p in enumerate(every) if p in optimizer.state]
        run.group.conclude()
        return kept, again, len(optimizer.state), weights(model)

    zero, one = on_ranks(script, 2, view=view, shard_optimizer=True)
    assert sorted(zero[0] + one[0]) == [0, 1, 2, 3]
    assert zero[0] == zero[1] == [0]  # the largest, 35 of 66 numbers
    assert zero[2] == one[2] == 4
    assert all(torch.equal(a, b) for a, b in zip(zero[3], one[3], strict=True))


def test_with_weights_that_are_averaged_it_is_refused():
    with pytest.raises(BadInput, match=r"^--average-every is .epoch. with --shard-optimizer"):
        Options(average_every="epoch", view="local", shard_optimizer=True)
