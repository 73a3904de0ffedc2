"""Ignored targets of a data set in memory are counted without a collective, and exactly."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, Subset, TensorDataset

from tests.support.training import TWO_OR_THREE, Scripts, assert_as_alone, mlp, on_ranks, sgd

script = Scripts()
IGNORED = -100


def some_ignored(rows=40):
    """Targets per row, and two for each row, of which 1 may be ignored."""
    y, pairs = torch.randint(3, (rows,)), torch.randint(3, (rows, 2))
    y[torch.rand(rows) < 0.3] = IGNORED
    return TensorDataset(torch.randn(rows, 5), y, pairs)


def trained(loss, data=None, epochs=2):
    """Losses and gradients of each step."""
    model, found = mlp(), []
    optimizer = sgd(model)
    for _ in range(epochs):
        for step, (x, *targets) in enumerate(DataLoader(data or some_ignored(), 8, shuffle=True)):
            optimizer.zero_grad()
            made = loss(model(x), *targets, step)
            made.backward()
            optimizer.step()
            found.append((made.item(), *(p.grad.clone() for p in model.parameters())))
    return found


@script
def as_they_are():
    return trained(lambda out, y, _, step: F.cross_entropy(out, y))


@script
def of_a_subset_of_a_subset():
    data = Subset(Subset(some_ignored(), range(39, 0, -1)), [*range(37)])
    return trained(lambda out, y, _, step: F.cross_entropy(out, y.view(-1)), data)


@script
def written_after_the_fetch():
    def loss(out, y, _, step):
        if step % 4 == 1:
            y[0] = IGNORED
        elif step % 4 == 2:
            y.numpy()[3] = IGNORED
        elif step % 4 == 3:
            y.view(-1)[:3] = 1
        return F.cross_entropy(out, y)

    return trained(loss)


@script
def a_part_of_the_targets():
    return trained(lambda out, _, z, step: F.cross_entropy(out, z[:, step % 2], ignore_index=1))


@script
def several_for_each_row():
    def loss(out, _, z, step):
        return F.cross_entropy(out.repeat_interleave(2, 0), z.view(-1), ignore_index=1)

    return trained(loss)


@script
def two_losses_that_ignore_others():
    def loss(out, y, z, step):
        first = F.cross_entropy(out, y, label_smoothing=0.1)
        return first + F.cross_entropy(out, z[:, 0], ignore_index=step % 3)

    return trained(loss)


@script
def all_of_a_batch():
    data = TensorDataset(torch.randn(16, 5), torch.full((16,), IGNORED))
    return trained(lambda out, y, step: F.cross_entropy(out, y), data, epochs=1)


@script
def evaluated_in_inference_mode():
    model, found = mlp(), []
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            for x, y, _ in DataLoader(some_ignored(), 8):
                found.append(F.cross_entropy(model(x), y).item())
    batches = [*DataLoader(some_ignored(), 8)]
    with torch.inference_mode():
        found += [F.cross_entropy(model(x), y).item() for x, y, _ in batches]
    return found


@TWO_OR_THREE
@pytest.mark.parametrize("name", script)
def test_numbers_are_those_of_one_process(seen, name, nproc):
    assert_as_alone(seen[1][name][0], seen[nproc][name])


def test_only_the_first_loss_waits_for_the_number_of_targets():
    def counted(run):
        calls, plain = [0], run.group.all_reduce

        def counting(*given):
            calls[-1] += 1
            return plain(*given)

        def loss(out, y, _, step):
            run.group.all_reduce = counting
            calls.append(0)
            made = F.cross_entropy(out, y)
            run.group.all_reduce = plain
            return made

        trained_without_reading(loss)
        return calls[1:]

    first, *others = on_ranks(counted)[0]
    assert first == 1
    assert {*others} == {0}


def trained_without_reading(loss):
    model = mlp()
    optimizer = sgd(model)
    for _ in range(3):
        for step, (x, *targets) in enumerate(DataLoader(some_ignored(), 8)):
            optimizer.zero_grad()
            loss(model(x), *targets, step).backward()
            optimizer.step()
