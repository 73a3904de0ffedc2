"""Gradients of several backwards are averaged once, and are one process's whoever reads them."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.utils.checkpoint
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, Dataset

from autoddp import torch_internals
from autoddp.errors import Disagreement
from autoddp.options import Options
from autoddp.process.session import session
from autoddp.report import Report
from tests.support.ranks import run_ranks
from tests.support.training import (
    TWO_OR_THREE,
    Runs,
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


def guarded():
    """Whether the property that averages what is read is there."""
    there = {name in vars(torch.Tensor) for name in torch_internals.GRADIENTS}
    assert len(there) == 1
    return there.pop()


def pending(run):
    """The script comes here in the midst of a round: gradients are late, if there are ranks."""
    assert guarded() == (run.world.world_size > 1)


def averaged():
    """All gradients are true here."""
    assert not guarded()


class Accumulates:
    """A script that adds up the gradients of some batches before a step."""

    def __init__(self, model=None, optimizer=None, count=200):
        self.model = mlp() if model is None else model
        self.optimizer = optimizer or sgd(self.model, momentum=0.9)
        self.batches = iter(batches(5 * count, 5))
        self.losses = []

    def backward(self, forward=None, **given):
        x, y = next(self.batches)
        loss = F.cross_entropy((forward or self.model)(x), y)
        loss.backward(**given)
        self.losses.append(loss.detach())

    def backwards(self, count):
        for _ in range(count):
            self.backward()

    def step(self):
        self.optimizer.step()
        averaged()
        self.optimizer.zero_grad()

    def round(self, count):
        self.backwards(count)
        self.step()

    def begin(self, run):
        """Learn rounds of three, and stop within one."""
        self.round(3)
        self.round(3)
        self.backwards(2)
        pending(run)

    def found(self):
        return [loss.item() for loss in self.losses], grads(self.model), weights(self.model)


@script
def rounds_of_other_lengths():
    it = Accumulates()
    for count in (3, 3, 2, 3, 5, 1, 4, 4, 2, 2):
        it.round(count)
    return it.found()


@script
def norms_and_clipping(run):
    it, norms = Accumulates(), []
    for count in (3, 3, 2, 3):
        it.backwards(count)
        norms.append(clip_grad_norm_(it.model.parameters(), 0.1).item())
        it.step()
    it.backwards(2)
    pending(run)
    norms.append(nn.utils.get_total_norm([p.grad for p in it.model.parameters()]).item())
    return norms, it.found()


@script
def one_is_read_and_kept(run):
    it = Accumulates()
    it.begin(run)
    held = it.model[0].weight.grad
    averaged()
    found = held.clone()
    it.backwards(2)
    averaged()  # the script may look at what it holds
    found = found, held.clone()
    it.step()
    for _ in range(3):
        it.round(3)
    it.backward()
    pending(run)  # and has not looked for two rounds
    return found, held, it.found()


@script
def gradients_that_are_set_or_taken_away(run):
    it = Accumulates()
    it.begin(run)
    first, second, third, fourth = it.model.parameters()
    first.grad = None
    second.grad = torch.ones(7)
    pending(run)
    del third.grad
    with pytest.raises(TypeError):
        fourth.grad = "none"
    pending(run)
    it.backward()
    found = grads(it.model)
    it.step()
    it.round(3)
    it.backwards(2)
    pending(run)
    for p in it.model.parameters():
        p.grad = None
    averaged()
    it.backward()
    return found, it.found()


@script
def a_scaler(run):
    it, scaler, norms = Accumulates(optimizer=None), torch.amp.GradScaler("cpu", 8.0), []
    for number, count in enumerate((3, 3, 2, 3)):
        for at in range(count):
            x, y = next(it.batches)
            loss = F.cross_entropy(it.model(x), y)
            scaler.scale(loss * float("inf") if (number, at) == (1, 1) else loss).backward()
        if number == 2:
            pending(run)
        if number != 3:
            scaler.unscale_(it.optimizer)
            norms.append(clip_grad_norm_(it.model.parameters(), 0.1).item())
        scaler.step(it.optimizer)
        scaler.update()
        it.optimizer.zero_grad()
    return norms, scaler.get_scale(), it.found()


@script
def hooks_on_parameters(run):
    it, seen = Accumulates(), []
    it.model[0].weight.register_hook(lambda g: seen.append(g.clone()))
    it.model[0].bias.register_hook(lambda g: g.clamp(-0.01, 0.01))
    it.begin(run)
    it.model[2].weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    it.backward()
    for _ in range(2):
        it.round(2)
    return seen, it.found()


@script
def sets_that_share_leaves(run):
    body, left, right = nn.Linear(5, 4), nn.Linear(4, 3), nn.Linear(4, 3)
    it = Accumulates(nn.ModuleList([body, left, right]))
    heads = {"l": left, "r": right}
    for turns in ("lrlr", "lrlr", "lrl", "rrll", "lrr", "lrlr", "llll", "lllr"):
        for head in turns:
            it.backward(lambda x, head=head: heads[head](body(x)))
        it.step()
    it.backward(lambda x: left(body(x)))
    pending(run)
    body(next(it.batches)[0]).mean().backward()
    pending(run)  # of left
    return it.found()


@script
def other_kinds_of_backward_in_the_midst(run):
    it = Accumulates()
    it.begin(run)
    loss = F.cross_entropy(it.model(next(it.batches)[0]), torch.arange(5) % 3)
    found = [torch.autograd.grad(loss, it.model[0].weight, retain_graph=True)]
    pending(run)
    loss.backward(retain_graph=True, inputs=list(it.model[0].parameters()))
    found.append(grads(it.model))
    it.step()
    for _ in range(3):
        it.round(3)
    it.backwards(2)
    pending(run)
    loss = F.cross_entropy(it.model(next(it.batches)[0]), torch.arange(5) % 3)
    loss.backward(create_graph=True)
    norm = sum((p.grad**2).sum() for p in it.model.parameters())
    norm.backward()
    found += [norm.item(), grads(it.model)]
    it.model.zero_grad()
    return found, it.found()


@script
def exceptions(run):
    it = Accumulates()
    it.begin(run)

    def refuse(x):
        hidden = it.model[0](x)
        hidden.register_hook(lambda g: 1 / 0)
        return it.model[2](it.model[1](hidden))

    for forward in (refuse, lambda x: 1 / 0):
        with pytest.raises(ZeroDivisionError):
            it.backward(forward)
        pending(run)
    found = grads(it.model)
    it.step()
    for _ in range(3):
        it.round(3)
    with pytest.raises(ZeroDivisionError):
        it.backward(refuse)  # which would have been late, and has come to some leaves
    pending(run)
    return found, it.found()


@script
def sparse_gradients_are_never_late():
    table, head = nn.Embedding(11, 4, sparse=True), nn.Linear(4, 3)
    optimizer = torch.optim.SGD([*table.parameters(), *head.parameters()], 0.5)
    for _ in range(3):
        for _ in range(3):
            tokens, y = torch.randint(11, (7, 3)), torch.randint(3, (7,))
            F.cross_entropy(head(table(tokens).mean(1)), y).backward()
            averaged()
        optimizer.step()
        optimizer.zero_grad()
    return weights(table, head)


@script
def raw_leaves_and_copies(run):
    w, b = torch.randn(5, 3, requires_grad=True), torch.zeros(3, requires_grad=True)
    optimizer = torch.optim.SGD([w, b], 0.1)
    data = iter(batches(120, 5))
    found = []

    def backwards(count):
        for _ in range(count):
            x, y = next(data)
            F.cross_entropy(x @ w + b, y).backward()

    for look in (copy.deepcopy, lambda p: p.view_as(p), lambda p: getattr(p, "_grad")):  # noqa: B009
        optimizer.zero_grad()
        for count in (2, 2):
            backwards(count)
            optimizer.step()
            optimizer.zero_grad()
        backwards(1)
        pending(run)
        seen = look(w)
        found += [seen, seen.grad if seen.is_leaf else None, w.grad, b.grad]
    return found


@script
def a_compiled_function(run):
    it = Accumulates()
    it.begin(run)
    norm = torch.compile(lambda p: p.grad.norm(), backend="eager")
    found = [norm(it.model[0].weight).item()]
    it.step()
    for _ in range(3):
        it.backwards(2)
        found.append(norm(it.model[0].weight).item())
        it.step()
    return found, it.found()


@pytest.fixture(scope="module")
def seen():
    return Runs(lambda nproc: script.run(nproc))


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
                it = Accumulates()
                it.begin(run)
                if fails:
                    raise ValueError
                group.conclude()
        except ValueError:
            pass
        averaged()
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
        it = Accumulates()
        loader = DataLoader(Reads(it.model[0].weight), 2, num_workers=workers)
        next(iter(loader))  # all ranks look at how it loads
        it.begin(run)
        loader.dataset.looks = True
        with pytest.raises(Disagreement, match="read where the other ranks do not read it"):
            next(iter(loader))
        return True

    assert on_ranks(reads, 2) == [True, True]
