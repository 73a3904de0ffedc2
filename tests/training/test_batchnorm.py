import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from tests.support.training import (
    TWO_OR_THREE,
    Scripts,
    assert_as_alone,
    assert_same,
    grads,
    on_ranks,
    sgd,
    weights,
)

script = Scripts()
SHAPES = {1: (6,), 2: (6, 3, 4)}
KINDS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d}


def net(dims, **given):
    """BatchNorm in the middle."""
    into = nn.Linear(6, 6) if dims == 1 else nn.Conv2d(6, 6, 1)
    return nn.Sequential(into, KINDS[dims](6, **given), nn.Tanh())


def data(dims, count=13):
    return DataLoader(TensorDataset(torch.randn(count, *SHAPES[dims]) * 3 + 2), 5)


def steps(model, loader, change=lambda x: x):
    """Weights, running statistics, gradients of the last step, and what evaluation gives."""
    optimizer = sgd(model)
    for (x,) in loader:
        optimizer.zero_grad()
        (model(change(x)) ** 3).mean().backward()
        optimizer.step()
    last = grads(model)
    model.eval()
    with torch.no_grad():
        evaluated = torch.cat([model(change(x)) for (x,) in loader])
    return weights(model), last, evaluated


@script
def two_dimensions():
    return steps(net(2), data(2))


@script
def a_cumulative_average():
    return steps(net(2, momentum=None), data(2))


@script
def channels_last():
    model = net(2).to(memory_format=torch.channels_last)
    return steps(model, data(2), lambda x: x.to(memory_format=torch.channels_last))


@script
def a_mean_far_from_zero():
    return steps(nn.Sequential(nn.BatchNorm2d(6), nn.Tanh()), data(2), lambda x: x + 1e4)


@script
def the_function_on_a_batch():
    mean, var = torch.zeros(6), torch.ones(6)
    found = []
    for (x,) in data(1):
        x.requires_grad_()
        out = F.batch_norm(x, mean, var, training=True)
        (out**3).sum().backward()
        found += [out, x.grad, F.batch_norm(x, mean, var, training=False)]
        found += [F.batch_norm(x, None, None, training=True)]
    return found, mean, var


@script
def a_second_derivative():
    model = net(1)
    (x,) = next(iter(data(1)))
    x.requires_grad_()
    (g,) = torch.autograd.grad((model(x) ** 3).sum(), x, create_graph=True)
    (g**2).sum().backward()
    return g, grads(model)


@TWO_OR_THREE
@pytest.mark.parametrize("name", script)
def test_statistics_are_those_of_the_batch(seen, name, nproc):
    assert_as_alone(seen[1][name][0], seen[nproc][name])


def test_normalizing_gathers_nothing(seen):
    for name in ("two_dimensions", "a_cumulative_average", "channels_last"):
        gathered = seen[2][name][0].decisions.get("gather", ())
        assert not [d for d in gathered if not d.endswith(": cat")], gathered  # of what it returns


def test_local_statistics_are_those_of_this_ranks_rows():
    def script(run):
        torch.manual_seed(run.world.world_size)
        norm, x = nn.BatchNorm1d(6), torch.arange(24.0).reshape(4, 6)
        model = nn.Sequential(norm)
        return model(x), norm.running_mean

    zero, one = on_ranks(script, 2, batchnorm="local")
    x = torch.arange(24.0, dtype=torch.float64).reshape(4, 6)
    for rank, (out, mean) in enumerate((zero, one)):
        half = x[:2] if rank == 0 else x[2:]
        assert_same(0.1 * half.mean(0), mean)
        parts = [F.batch_norm(part, None, None, training=True) for part in (x[:2], x[2:])]
        assert_same(torch.cat(parts), out)
