"""Gradients in the middle of a graph: what hooks, functions of a script and `.grad` show."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.autograd.functional import hessian, jacobian
from torch.autograd.graph import get_gradient_edge, register_multi_grad_hook
from torch.func import functional_call, grad, jacfwd, vmap
from torch.nn import functional as F
from torch.nn.utils import parametrize
from torch.utils.data import DataLoader

import autoddp
from tests.support.training import (
    TWO_OR_THREE,
    Runs,
    Scripts,
    assert_as_alone,
    assert_same,
    mlp,
    on_ranks,
)

script = Scripts()


class Shortened(torch.autograd.Function):
    """The identity, with a backward that is not linear."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return shortened(g)


def shortened(g):
    return g / (g.norm() + 1)


def inputs(rows=16):
    """The last batch has one row, or none for each rank."""
    return DataLoader(torch.randn(rows, 5), 5)


def trained(forward):
    """Losses and gradients of steps whose model has a weight that is computed."""
    weight, found = nn.Parameter(torch.randn(3, 5)), []
    for x in inputs():
        seen = []
        loss = forward(weight, x, seen).square().mean()
        loss.backward()
        found.append((loss.item(), weight.grad.clone(), *(y.clone() for y in seen)))
        weight.grad = None
    return found


@script
def a_function_of_a_weight():
    return trained(lambda w, x, seen: F.linear(x, Shortened.apply(w)))


@script
def a_function_that_comes_later():
    return trained(lambda w, x, seen: F.linear(x, (Shortened.apply(w * 2) + w).tanh()))


@script
def a_hook_that_looks():
    def forward(w, x, seen):
        w = w * 2
        w.register_hook(lambda g: seen.append(g))
        return F.linear(x, w)

    return trained(forward)


@script
def a_hook_that_changes():
    def forward(w, x, seen):
        w = w * 2
        w.register_hook(shortened)
        w.register_hook(hook=lambda g: seen.append(g))
        return F.linear(x, w.tanh())

    return trained(forward)


@script
def a_hook_of_several():
    def forward(w, x, seen):
        one, two = w * 2, w.sin()
        register_multi_grad_hook((one, two), lambda gs: seen.extend(gs))
        return F.linear(x, one) + F.linear(x, two)

    return trained(forward)


def kept(change):
    def forward(weight, x, seen):
        w = weight * 2
        change(w)
        w.retain_grad()
        w.retain_grad()
        out = F.linear(x, w)
        (out.square().mean() * 2).backward(retain_graph=True)
        seen.append(w.grad)
        return out

    return trained(forward)


@script
def a_gradient_that_is_retained():
    return kept(lambda w: None)


@script
def a_gradient_that_a_hook_changes_and_that_is_retained():
    return kept(lambda w: w.register_hook(shortened))


@script
def the_gradient_of_an_input_of_backward():
    def forward(weight, x, seen):
        w = weight * 2
        out = F.linear(x, w)
        out.square().mean().backward(inputs=[w], retain_graph=True)
        seen += [w.grad]
        return out

    return trained(forward)


@script
def gradients_of_inputs_that_are_batches_and_losses():
    """The `inputs` of a backward, whose gradients torch retains from then on."""

    def forward(weight, x, seen):
        x.requires_grad_()
        out, times = F.linear(x, weight), {"retain_graph": True}
        loss, twice = out.square().mean(), out * 2
        loss.backward(inputs=[x, weight], **times)
        seen += [x.grad.clone(), weight.grad.clone()]
        loss.backward(inputs=x, **times)
        (loss + twice.mean()).backward(inputs=[x, out, loss], **times)
        out.backward(torch.ones_like(out), inputs=(twice, x), **times)
        seen += [x.grad.clone(), out.grad.clone(), loss.grad.clone()]
        seen += torch.autograd.grad(loss, get_gradient_edge(weight), **times)
        twice.sum().backward(**times)
        seen += [out.grad, twice.grad]
        return out

    return trained(forward)


def gradients_of_a_dict_of_inputs():
    def forward(weight, x, seen):
        x.requires_grad_()
        out = F.linear(x, weight).tanh()
        named = {"x": x, "weight": weight}
        given = torch.autograd.grad(out.square().mean(), named, retain_graph=True)
        seen += [given["x"], given["weight"]]
        assert [*given] == [*named]
        out.mean().backward(inputs=named, retain_graph=True)
        seen += [x.grad, weight.grad]
        return out

    return trained(forward)


if "dict" in torch.autograd.grad.__doc__:  # no torch before takes one
    script(gradients_of_a_dict_of_inputs)


@script
def a_frozen_layer_in_batches_of_few_rows():
    """torch computes one row in another layout, which a hook of ours keeps."""
    body, found = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).eval(), []
    for rows in (1, 2, 3, 4, 5):
        body.zero_grad()
        for x in DataLoader(torch.randn(rows, 5), 5):
            body(x).square().mean().backward()
        found += [p.grad.clone() for p in body.parameters()]
    return found


@script
def forward_mode_gradients():
    weight, net, found = torch.randn(3, 5), nn.Linear(5, 3), []
    for x in inputs():
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, torch.ones_like(x))
            w = forward_ad.make_dual(weight, weight + 1)
            outs = net(dual), dual * 2, F.linear(x, w), F.linear(x, w).mean()
            tangents = [forward_ad.unpack_dual(out).tangent for out in outs]
        loss = tangents[0].square().mean() + net(x).mean()
        loss.backward()
        found += [loss.item(), *tangents, net.weight.grad.clone()]
    return found


@script
def a_hook_of_a_parameter_that_returns_something():
    net = nn.Linear(5, 3)
    net.weight.register_post_accumulate_grad_hook(lambda p: p.grad.mul_(0.5))
    for x in inputs():
        with pytest.raises(RuntimeError, match="should return None"):
            net(x).mean().backward()
    return True


@script
def a_hook_of_a_module_that_makes_a_weight():
    seen = []

    class Made(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_full_backward_hook(lambda it, gi, go: seen.append(go[0].clone()))

        def forward(self, w):
            return w.tanh()

    net = nn.Linear(5, 3)
    parametrize.register_parametrization(net, "weight", Made())
    for x in inputs():
        net(x).square().mean().backward()
    return seen, [p.grad for p in net.parameters()]


def after_a_loss_that_is_kept(change):
    """A loss of one row, which every rank has, times one of rows: each rank has a part of it."""
    net, first, found = mlp(), None, []
    for x in inputs():
        h = change(net[0](x))
        loss = net[1:](h).square().mean()
        first = loss.detach() if first is None else first
        (loss * first).backward()
        found.append((loss.item(), h.grad if h.retains_grad else None))
    return found, [p.grad for p in net.parameters()]


@script
def a_function_in_a_batch_of_one_row():
    return after_a_loss_that_is_kept(Shortened.apply)


@script
def a_hook_in_a_batch_of_one_row():
    def change(h):
        h.register_hook(hook=shortened)
        return h

    return after_a_loss_that_is_kept(change)


@script
def retained_in_a_batch_of_one_row():
    def change(h):
        h.retain_grad()
        return h

    return after_a_loss_that_is_kept(change)


@script
def batched_gradients():
    net, found = mlp(), []
    for x in inputs():
        x.requires_grad_()
        out = net(x).tanh()
        some = [(out.sum(0), torch.eye(3)), (out, torch.randn(4, *out.shape))]
        for y, seeds in some:
            wanted = [x, *net.parameters(), torch.zeros(2, requires_grad=True)]
            found.append(
                torch.autograd.grad(
                    y, wanted, seeds, is_grads_batched=True, retain_graph=True, allow_unused=True
                )
            )
        (second,) = torch.autograd.grad(
            out.sum(0), x, torch.eye(3), create_graph=True, is_grads_batched=True
        )
        second.square().sum().backward()
    return found, [p.grad for p in net.parameters()]


@script
def jacobians_by_vmap():
    net, w, found = mlp(), torch.randn(5), []
    for x in inputs():
        found += [
            jacobian(lambda a: net(a).tanh().sum(0), x, vectorize=True),
            jacobian(lambda a, x=x: (x @ a).tanh().sum(0, True), w, vectorize=True),
            hessian(lambda a, x=x: (x @ a).tanh().square().mean(), w, vectorize=True),
        ]
    return found


@script
def transforms_that_close_over_a_batch():
    net, w, found = mlp(), torch.randn(5), []
    weights = {name: p.detach() for name, p in net.named_parameters()}
    for x in inputs():
        found += [
            grad(lambda a, x=x: (x @ a).square().mean())(w),
            grad(lambda p, x=x: functional_call(net, p, (x,)).square().mean())(weights),
            jacfwd(lambda a, x=x: x[:2].clone() @ a)(w),
            vmap(lambda a, x=x: (x @ a).tanh().sum(0))(torch.randn(3, 5)),
        ]
    return found


@autoddp.rowwise
def with_a_hook(h, w):
    """On the rows of a rank, whose hooks see those."""
    out = h * 2
    out.register_hook(lambda g: g * 3)
    out.retain_grad()
    return out @ w.T


@script
def a_hook_in_a_function_by_rows():
    return trained(lambda w, x, seen: with_a_hook(F.linear(x, w), w[:, :3]))


seen = Runs(script.run)


@TWO_OR_THREE
@pytest.mark.parametrize("name", script)
def test_what_is_seen_is_that_of_one_process(name, nproc):
    assert_as_alone(seen[1][name][0], seen[nproc][name])


def errors_of_a_second_backward(run):
    """Of which one rank alone collects what they leave behind."""
    net, found = mlp(), []
    gc.disable()
    for _ in range(3):
        for x in inputs(12):
            h = net(x)
            h = h + h.roll(1, 0)
            loss = h.square().mean() + (h.T @ h / len(h)).square().sum()
            try:
                loss.backward()
                loss.backward()
            except RuntimeError as error:
                found.append(str(error)[:20])
            if run.world.rank:
                gc.collect()
            found.append((loss.item(), *(p.grad.clone() for p in net.parameters())))
            net.zero_grad()
    return found


def test_a_backward_that_raised_reduces_nothing_later():
    (alone,) = on_ranks(errors_of_a_second_backward, 1)
    for found in on_ranks(errors_of_a_second_backward, 2):
        assert_same(alone, found)
