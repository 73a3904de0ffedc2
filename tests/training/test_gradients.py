import pytest
import torch
import torch.utils.checkpoint
from torch import nn
from torch.nn import functional as F

from autoddp.errors import Disagreement
from autoddp.view import full
from tests.support.training import (
    TWO_OR_THREE,
    Scripts,
    assert_as_alone,
    batches,
    grads,
    mlp,
    on_ranks,
    sgd,
    weights,
)

script = Scripts()


def first(loader=None):
    """One batch, with a short last row count on some rank."""
    return next(iter(loader or batches(9, 5)))


@script
def a_seed_for_every_row():
    model, (x, y) = mlp(), first()
    F.cross_entropy(model(x), y, reduction="none").backward(torch.arange(5.0))
    model(x).backward(torch.ones(5, 3))
    return grads(model)


def game(sets, steps):
    """Losses over different sets of parameters in turn, as in a GAN with many players."""
    players = [nn.Linear(5, 5) for _ in range(sets)]
    optimizers = [sgd(player) for player in players]
    for _ in range(steps):
        for x, _ in batches(9, 5):
            for n, player in enumerate(players):
                optimizers[n].zero_grad()
                other = players[(n + 1) % sets]
                fake = other(x).detach()
                (player(x) * fake).mean().backward()
                optimizers[n].step()
    return weights(*players)


@script
def more_sets_than_reducers_are_kept():
    return game(6, 2)


@script
def an_optimizer_in_the_backward():
    model = mlp()
    optimizers = {p: torch.optim.SGD([p], 0.1) for p in model.parameters()}

    def step(p):
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)
    losses = []
    for x, y in batches(22, 5):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        losses.append(loss.item())
    return losses, weights(model)


class Forces(nn.Module):
    """A module whose forward computes the gradient of its input, made a leaf in some way."""

    def __init__(self, leaf):
        super().__init__()
        self.net, self.leaf = mlp(5, 1), leaf

    def forward(self, x):
        x = self.leaf(x)
        energy = self.net(x)
        (g,) = torch.autograd.grad(energy.sum(), x, create_graph=self.training)
        return energy, -g


@script
def a_gradient_inside_a_forward():
    found = []
    for given, leaf in (
        (True, lambda x: x),
        (True, lambda x: x.requires_grad_()),
        (False, lambda x: x.requires_grad_()),
        (True, lambda x: (setattr(x, "requires_grad", True), x)[1]),
        (False, lambda x: x.detach().requires_grad_()),
        (False, lambda x: x.clone().requires_grad_()),
    ):
        torch.manual_seed(0)
        model = Forces(leaf)
        optimizer = sgd(model)
        for x, _ in batches(22, 5):
            x.requires_grad_(given)
            optimizer.zero_grad()
            energy, force = model(x)
            loss = (energy**2).mean() + (force**2).mean()
            loss.backward()
            optimizer.step()
            found += [loss.item(), force.detach(), x.grad]
        found += [weights(model), model.eval()(x.detach().requires_grad_())[1].detach()]
    return found


@script
def unused_are_none():
    model, unused = mlp(), nn.Linear(3, 3)
    loss = F.cross_entropy(*[f(v) for f, v in zip((model, lambda y: y), first(), strict=True)])
    found = torch.autograd.grad(
        loss, [model[0].bias, unused.weight], allow_unused=True, retain_graph=True
    )
    loss.backward()
    return found, grads(model, unused)


class Doubled(torch.autograd.Function):
    """A function that gives one of its inputs no gradient."""

    @staticmethod
    def forward(ctx, x, threshold):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2, None


@script
def no_gradient_is_no_zeros():
    model, threshold = mlp(), nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([*model.parameters(), threshold], 0.1, weight_decay=0.1)
    found = []
    for x, y in batches(22, 5):
        optimizer.zero_grad()
        apart = torch.zeros((), requires_grad=True)
        loss = F.cross_entropy(Doubled.apply(model(x), threshold), y)
        torch.autograd.backward([apart, loss])
        found.append((threshold.grad, grads(model)))
        optimizer.step()
    threshold.grad = torch.ones(3)
    F.cross_entropy(Doubled.apply(model(x), threshold), y).backward()
    return found, threshold.grad, threshold.detach(), weights(model)


@TWO_OR_THREE
@pytest.mark.parametrize("name", script)
def test_gradients_are_those_of_one_process(seen, name, nproc):
    assert_as_alone(seen[1][name][0], seen[nproc][name])


def test_a_backward_behind_our_back_is_caught_at_the_step():
    def script(run):
        model = mlp()
        optimizer = sgd(model)
        for x, y in batches(12, 6):
            loss = F.cross_entropy(model(x), y)
            engine = torch.autograd.Variable._execution_engine
            engine.run_backward((full(loss),), (torch.ones(()),), False, False, (), True, True)
            try:
                optimizer.step()
            except Disagreement as error:
                return str(error)
        return "nothing"

    for said in on_ranks(script, 2):
        assert said.startswith("test_gradients.py:")
        assert "the sum of the gradients is not the same on all ranks" in said
        assert "a backward that went past torch.autograd.backward" in said


def test_parameters_that_differ_at_the_start_are_named():
    def script(run):
        model = mlp()
        with torch.no_grad():
            model[2].weight[0, 0] += run.world.rank
        x, y = first()
        try:
            F.cross_entropy(model(x), y).backward()
        except Disagreement as error:
            return str(error)
        return "nothing"

    for said in on_ranks(script, 2):
        assert "parameter 2 of 4, of shape (3, 7), is not the same on all ranks" in said
