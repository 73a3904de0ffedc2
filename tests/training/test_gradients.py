import pytest
import torch
import torch.utils.checkpoint
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_

from autoddp import torch_internals
from autoddp.errors import Disagreement
from autoddp.view import full
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
def only_some_inputs():
    model, (x, y) = mlp(), first()
    loss = F.cross_entropy(model(x), y)
    loss.backward(inputs=list(model[0].parameters()), retain_graph=True)
    some = grads(model)
    loss.backward(inputs=model[2].weight)
    return some, grads(model)


@script
def inputs_that_are_rows_or_an_iterator():
    model, (x, y) = mlp(), first()
    x.requires_grad_()
    F.cross_entropy(model(x), y).backward(inputs=x)
    some = x.grad.clone(), grads(model)
    loss = F.cross_entropy(model(x), y)
    loss.backward(inputs=[x, model[0].weight], retain_graph=True)
    by_name = {"bias": model[0].bias, "input": x}
    named = "A dict of tensors" in (torch.autograd.backward.__doc__ or "")  # a later torch takes it
    loss.backward(inputs=by_name if named else list(by_name.values()), retain_graph=True)
    last = list(model[2].parameters())
    # torch up to 2.7 asks for the length of what it is given, which an iterator has not
    loss.backward(inputs=iter(last) if torch_internals.VERSION >= (2, 8) else last)
    return some, x.grad, grads(model)


@script
def the_graph_is_kept():
    model, (x, y) = mlp(), first()
    out = model(x)
    F.cross_entropy(out, y).backward(retain_graph=True)
    (out**2).sum().backward()
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


@script
def accumulation():
    model, optimizer, found = mlp(), None, []
    optimizer = sgd(model)
    for step, (x, y) in enumerate(batches(22, 5)):
        (F.cross_entropy(model(x), y) / 2).backward()
        if step % 2:
            found.append(grads(model))
            optimizer.step()
            optimizer.zero_grad(set_to_none=step == 1)
    return found, grads(model), weights(model)


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
def two_sets_in_turn():
    return game(2, 3)


@script
def more_sets_than_reducers_are_kept():
    return game(6, 2)


@script
def a_set_within_a_set():
    body, left, right = nn.Linear(5, 4), nn.Linear(4, 3), nn.Linear(4, 3)
    optimizer = sgd(nn.ModuleList([body, left, right]))
    for step, (x, y) in enumerate(batches(22, 5)):
        optimizer.zero_grad()
        F.cross_entropy((left if step % 2 else right)(body(x)), y).backward()
        if step % 3 == 0:
            body(x).mean().backward()
        optimizer.step()
    return weights(body, left, right)


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
def raw_tensors():
    w, b = torch.randn(5, 3, requires_grad=True), torch.zeros(3, requires_grad=True)
    for x, y in batches(22, 5):
        F.cross_entropy(x @ w + b, y).backward()
        with torch.no_grad():
            for p in (w, b):
                p -= 0.1 * p.grad
                p.grad = None
    return w, b


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
def hooks_on_parameters():
    model, seen = mlp(), []
    model[0].weight.register_hook(lambda g: seen.append(g.clone()))
    model[0].bias.register_hook(lambda g: g.clamp(-0.01, 0.01))
    model[2].weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    handle = model[2].bias.register_hook(lambda g: g * 100)
    handle.remove()
    return train(model, batches(12, 5)), weights(model), seen


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


@script
def grad_by_hand():
    model, losses = mlp(), []
    for x, y in batches(22, 5):
        loss = F.cross_entropy(model(x), y)
        found = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for p, g in zip(model.parameters(), found, strict=True):
                p -= 0.1 * g
        losses.append(loss.item())
    return losses, weights(model)


@script
def a_penalty_on_the_gradient():
    model = mlp(5, 1)
    optimizer = sgd(model)
    for x, _ in batches(22, 5):
        optimizer.zero_grad()
        x.requires_grad_()
        out = model(x)
        (g,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        (out.mean() + ((g.norm(2, 1) - 1) ** 2).mean()).backward()
        optimizer.step()
    return weights(model), torch.autograd.grad(model(torch.ones(4, 5)).sum(), model[0].weight)


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
def a_batch_that_was_written_before_it_is_a_leaf():
    model, (x, _) = mlp(), first()
    x[1:3].add_(1)
    x.numpy()
    x.mul_(2)
    x.requires_grad_()
    (model(x) ** 2).sum().backward()
    return x.grad, x.detach(), grads(model)


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
def a_gradient_that_a_hook_takes_away():
    model, (x, y) = mlp(), first()
    model[0].weight.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
    F.cross_entropy(model(x), y).backward()
    return grads(model)


@script
def frozen_between_forward_and_backward():
    model, losses, found = mlp(), [], []
    optimizer = sgd(model, momentum=0.9, weight_decay=0.1)
    for step, (x, y) in enumerate(batches(40, 5)):
        model.requires_grad_(True)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        model[0].requires_grad_(step % 2 == 0)
        model[2].requires_grad_(step % 3 == 0)
        loss.backward()
        found.append(grads(model))
        optimizer.step()
        losses.append(loss.item())
    return losses, found, weights(model)


@script
def clipping():
    model, norms = mlp(), []
    optimizer = sgd(model, 1.0)
    for x, y in batches(22, 5):
        optimizer.zero_grad()
        (100 * F.cross_entropy(model(x), y)).backward()
        norms.append(clip_grad_norm_(model.parameters(), 0.3).item())
        optimizer.step()
    return norms, weights(model)


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
def optimizers_that_come_and_go(run=None):
    held, losses, model = [], [], mlp()
    for _ in range(4):  # on one rank a new one may lie where an old one lay
        optimizer = sgd(model)
        losses += train(model, batches(12, 5), optimizer=optimizer)
        if run is not None and run.world.rank:
            held.append(optimizer)
        del optimizer
    return losses, weights(model)


@script
def backward_in_a_closure():
    model = mlp()
    optimizer = torch.optim.LBFGS(model.parameters(), 0.5, max_iter=4)
    x, y = first(batches(9, 7))

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    return [optimizer.step(closure).item() for _ in range(2)], weights(model)


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


def test_a_disagreement_is_raised_on_all_ranks_only_where_it_is_one():
    def script(run):
        model = mlp()
        train(model, batches(40, 3))  # more steps than are compared one by one
        return True

    assert on_ranks(script, 3) == [True] * 3
