import pytest
import torch
import torch.utils.checkpoint
from torch import nn
from torch.nn import functional as F

from autoddp.errors import Disagreement
from autoddp.view import full
from autoddp.view.order import Order
from tests.support.training import (
    TWO_OR_THREE,
    Runs,
    Scripts,
    assert_as_alone,
    batches,
    grads,
    mlp,
    on_ranks,
    sgd,
    train,
    weights,
)

script = Scripts()


def first(loader=None):
    """One batch, with a short last row count on some rank."""
    return next(iter(loader or batches(9, 5)))


@script
def a_list_of_losses_with_seeds():
    model, (x, y) = mlp(), first()
    out = model(x)
    torch.autograd.backward(
        [F.cross_entropy(out, y), (out**2).mean()], [torch.tensor(2.0), torch.tensor(0.5)]
    )
    return grads(model)


@script
def a_seed_for_every_row():
    model, (x, y) = mlp(), first()
    F.cross_entropy(model(x), y, reduction="none").backward(torch.arange(5.0))
    model(x).backward(torch.ones(5, 3))
    return grads(model)


@script
def a_graph_of_the_gradients():
    model, (x, y) = mlp(), first()
    F.cross_entropy(model(x), y).backward(create_graph=True)
    norm = sum((p.grad**2).sum() for p in model.parameters())
    (2 * norm).backward()
    found = norm.item(), grads(model)
    model.zero_grad()
    return found


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
def an_exception_in_mid_backward():
    model, found = mlp(), []
    optimizer = sgd(model)

    class Refuses(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            raise ValueError("no gradient today")

    for step, (x, y) in enumerate(batches(22, 5)):
        optimizer.zero_grad()
        hidden = model[1](model[0](x))
        try:
            F.cross_entropy(model[2](Refuses.apply(hidden) if step == 1 else hidden), y).backward()
        except ValueError as error:
            found.append(str(error))
            continue
        optimizer.step()
    return found, weights(model)


@script
def a_reentrant_checkpoint():
    body, head = nn.Sequential(nn.Linear(5, 6), nn.Dropout(0.5), nn.Tanh()), nn.Linear(6, 3)
    optimizer = sgd(nn.ModuleList([body, head]))
    for x, y in batches(22, 5):
        optimizer.zero_grad()
        inner = torch.utils.checkpoint.checkpoint(body, x.requires_grad_(), use_reentrant=True)
        F.cross_entropy(head(inner), y).backward()
        optimizer.step()
    return weights(body, head), torch.rand(())


@script
def sparse_gradients():
    table, head = nn.Embedding(11, 4, sparse=True), nn.Linear(4, 3)
    bag = nn.EmbeddingBag(11, 4, sparse=True)
    optimizer = torch.optim.SGD([*table.parameters(), *bag.parameters(), *head.parameters()], 0.5)
    kinds = []
    for _ in range(3):
        tokens, y = torch.randint(11, (7, 3)), torch.randint(3, (7,))
        optimizer.zero_grad()
        F.cross_entropy(head(table(tokens).mean(1) + bag(tokens)), y).backward()
        kinds.append((table.weight.grad.layout, bag.weight.grad.layout))
        optimizer.step()
    return kinds, table.weight.grad.to_dense(), weights(table, bag, head)


@script
def complex_leaves():
    w = torch.randn(5, 3, dtype=torch.complex128, requires_grad=True)
    optimizer = torch.optim.SGD([w], 0.1)
    for x, y in batches(12, 5):
        optimizer.zero_grad()
        F.cross_entropy((x.to(torch.complex128) @ w).abs(), y).backward()
        optimizer.step()
    return w, w.grad


@script
def a_loss_that_is_a_leaf():
    w = torch.tensor(2.0, requires_grad=True)
    w.backward()
    return w.grad


@script
def the_gradient_of_an_input():
    model = mlp()
    for x, y in batches(9, 5):
        x.requires_grad_()
        F.cross_entropy(model(x), y).backward()
        shape, total = tuple(x.grad.shape), x.grad.abs().sum().item()
    whole = torch.randn(6, 5, requires_grad=True)
    F.cross_entropy(model(whole), torch.arange(6) % 3).backward()
    return shape, total, whole.grad, grads(model)


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


class Coordinates(nn.Module):
    """A module that returns the leaf whose gradient the script asks for, as SIREN does."""

    def __init__(self):
        super().__init__()
        self.net = mlp(5, 1)

    def forward(self, x):
        x = x.clone().detach().requires_grad_()
        return self.net(x), x


@script
def a_leaf_that_a_forward_returns():
    model, losses = Coordinates(), []
    optimizer = sgd(model)
    for x, _ in batches(22, 5):
        out, leaf = model(x)
        (g,) = torch.autograd.grad(out, leaf, torch.ones_like(out), create_graph=True)
        optimizer.zero_grad()
        loss = (g.norm(dim=1) - 1).abs().mean()
        loss.backward()
        optimizer.step()
        losses += [loss.item(), leaf.grad]
    return losses, weights(model)


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


@script
def gradients_set_by_hand():
    model = mlp()
    optimizer = sgd(model)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    return weights(model)


@script
def leaves_that_come_later():
    model = mlp()
    losses = train(model, batches(12, 5))
    model.add_module("3", nn.Linear(3, 3))
    losses += train(model, batches(12, 5))
    for p in model[0].parameters():
        p.requires_grad_(False)
    return losses + train(model, batches(12, 5)), weights(model)


@script
def a_model_that_is_cast_and_back():
    model = mlp()
    losses = []
    for _ in range(3):  # each cast gives its parameters other accumulators
        losses += train(model, batches(9, 5))
        model.to(torch.complex128).to(torch.float64)
    return losses, weights(model)


@pytest.fixture(scope="module")
def seen():
    return Runs(lambda nproc: script.run(nproc))


@TWO_OR_THREE
@pytest.mark.parametrize("name", script)
def test_gradients_are_those_of_one_process(seen, name, nproc):
    assert_as_alone(seen[1][name][0], seen[nproc][name], 1e-8 if "closure" in name else 1e-9)


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


def test_numbers_of_parameters_that_are_gone_are_not_passed_on():
    order = Order()
    order.note([torch.ones(1) for _ in range(50)])  # gone at once: new ones may lie there
    new = [torch.ones(1) for _ in range(50)]
    assert all(a is b for a, b in zip(order.sorted(reversed(new)), reversed(new), strict=True))
