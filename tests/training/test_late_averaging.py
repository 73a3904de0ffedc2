"""Gradients of several backwards are averaged once, and are one process's whoever reads them."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, Dataset

from autoddp.errors import Disagreement
from autoddp.options import Options
from autoddp.process.session import session
from autoddp.report import Report
from autoddp.training.late_averaging import GRADIENTS
from tests.support.ranks import run_ranks
from tests.support.training import (
    TWO_OR_THREE,
    Scripts,
    assert_as_alone,
    assert_same,
    batches,
    grads,
    mlp,
    on_ranks,
    sgd,
    weights,
)

script = Scripts()


def late():
    """Whether the property that averages what is read is there."""
    (there,) = {name in vars(torch.Tensor) for name in GRADIENTS}
    return there


class Rounds:
    """A script that adds up the gradients of some batches before a step."""

    def __init__(self, run, model=None):
        self.ranks = run.world.world_size
        self.model = mlp() if model is None else model
        self.optimizer = sgd(self.model, momentum=0.9)
        self.batches = iter(batches(400, 5))

    def backward(self, forward=None, **given):
        x, y = next(self.batches)
        F.cross_entropy((forward or self.model)(x), y).backward(**given)

    def step(self):
        self.optimizer.step()
        assert not late()
        self.optimizer.zero_grad()

    def round(self, count):
        for _ in range(count):
            self.backward()
        self.step()

    def still_late(self):
        assert late() == (self.ranks > 1)

    def found(self):
        return grads(self.model), weights(self.model)


def in_a_round(act):
    """A script that does this after two backwards of three, when gradients are late."""

    def whole(run):
        it = Rounds(run)
        it.round(3)
        it.backward()
        it.backward()
        it.still_late()
        return act(it), it.found()

    script[act.__name__] = whole


@script
def rounds_of_other_lengths(run):
    it = Rounds(run)
    for count in (3, 3, 2, 3, 5, 1, 4):
        it.round(count)
    return it.found()


@in_a_round
def a_norm_reads_them(it):
    norm = clip_grad_norm_(it.model.parameters(), 0.1).item()
    assert not late()
    return norm


@in_a_round
def one_is_read_and_kept(it):
    held = it.model[0].weight.grad
    found = held.clone()
    it.backward()
    assert not late()  # the script may look at what it holds
    return found, held


@in_a_round
def one_was_read_in_a_round_before(it):
    it.model[0].weight.grad.sum()
    it.step()
    it.round(3)
    it.backward()
    it.still_late()


@in_a_round
def gradients_are_set_or_taken_away(it):
    first, second, third, fourth = it.model.parameters()
    first.grad = None
    second.grad = torch.ones(7)
    del third.grad
    with pytest.raises(TypeError):
        fourth.grad = "none"
    it.still_late()
    it.backward()


@in_a_round
def all_are_taken_away(it):
    for p in it.model.parameters():
        p.grad = None
    assert not late()
    it.backward()


@in_a_round
def hooks_on_parameters(it):
    seen = []
    it.model[0].weight.register_hook(lambda g: seen.append(g.clone()))
    it.model[0].bias.register_hook(hook=lambda g: g.clamp(-0.01, 0.01))
    it.model[2].weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    it.backward()
    return seen


@script
def sets_that_share_leaves(run):
    body, left, right = nn.Linear(5, 4), nn.Linear(4, 3), nn.Linear(4, 3)
    it = Rounds(run, nn.ModuleList([body, left, right]))
    heads = {"l": left, "r": right}
    for turns in ("lrlr", "lrlr", "lrl", "rrll", "llll"):
        for head in turns:
            it.backward(lambda x, head=head: heads[head](body(x)))
        it.step()
    it.backward(lambda x: left(body(x)))
    it.still_late()
    body(next(it.batches)[0]).mean().backward()
    it.still_late()  # of left
    return it.found()


@in_a_round
def a_gradient_that_the_script_asks_for(it):
    loss = it.model(next(it.batches)[0]).square().mean()
    found = torch.autograd.grad(loss, it.model[0].weight)
    it.still_late()
    return found


@in_a_round
def a_backward_to_some_parameters(it):
    it.backward(inputs=list(it.model[0].parameters()))


@in_a_round
def a_backward_with_a_graph(it):
    it.backward(create_graph=True)
    found = [p.grad.detach() for p in it.model.parameters()]
    it.model.zero_grad()  # else the graph holds its gradients, and these the graph
    return found


@in_a_round
def exceptions(it):
    def refuse(x):
        hidden = it.model[0](x)
        hidden.register_hook(lambda g: 1 / 0)
        return it.model[2](it.model[1](hidden))

    for forward in (refuse, lambda x: 1 / 0):
        with pytest.raises(ZeroDivisionError):
            it.backward(forward)
        it.still_late()  # also of the leaves that the first has reached


@script
def sparse_gradients_are_never_late():
    table, head = nn.Embedding(11, 4, sparse=True), nn.Linear(4, 3)
    optimizer = torch.optim.SGD([*table.parameters(), *head.parameters()], 0.5)
    for _ in range(3):
        for _ in range(3):
            tokens, y = torch.randint(11, (7, 3)), torch.randint(3, (7,))
            F.cross_entropy(head(table(tokens).mean(1)), y).backward()
            assert not late()
        optimizer.step()
        optimizer.zero_grad()
    return weights(table, head)


@in_a_round
def a_copy_of_a_parameter(it):
    return copy.deepcopy(it.model[0].weight).grad


@in_a_round
def a_read_by_the_private_name(it):
    return it.model[0].weight._grad


@in_a_round
def a_compiled_function(it):
    norm = torch.compile(lambda p: p.grad.norm(), backend="eager")
    found = [norm(it.model[0].weight).item()]
    it.step()
    it.round(3)
    it.backward()
    return found, norm(it.model[0].weight).item()


@TWO_OR_THREE
@pytest.mark.parametrize("name", script)
def test_numbers_are_those_of_one_process(seen, name, nproc):
    assert_as_alone(seen[1][name][0], seen[nproc][name])


# ---- the end, and where ranks are apart


def test_the_end_of_the_session_averages_and_leaves_nothing():
    def rank(group, fails):
        torch.set_default_dtype(torch.float64)
        torch.manual_seed(0)
        try:
            with session(group.world, Options(), group, Report()) as run:
                it = Rounds(run)
                it.round(2)
                it.backward()
                it.still_late()
                if fails:
                    raise ValueError
                group.conclude()
        except ValueError:
            pass
        assert not late()
        return [] if fails else [g.tolist() for g in grads(it.model)]

    assert run_ranks(rank, 2, True) == [[], []]
    (alone,), ranks = run_ranks(rank, 1, False), run_ranks(rank, 2, False)
    for found in ranks:
        assert_same(alone, found)


class Reads(Dataset):
    """A data set that looks at a gradient, from some time on."""

    def __init__(self, p):
        self.p, self.looks = p, False

    def __len__(self):
        return 4

    def __getitem__(self, at):
        return torch.tensor(float(at)) + (self.p.grad.sum() if self.looks else 0)


@pytest.mark.parametrize("workers", [0, 1])
def test_one_rank_alone_is_not_let_wait_for_the_others(workers):
    def reads(run):
        it = Rounds(run)
        loader = DataLoader(Reads(it.model[0].weight), 2, num_workers=workers)
        next(iter(loader))  # all ranks look at how it loads
        it.round(2)
        it.backward()
        loader.dataset.looks = True
        with pytest.raises(Disagreement, match="read where the other ranks do not read it"):
            next(iter(loader))
        return True

    assert on_ranks(reads, 2) == [True, True]
