"""What must be the same on all ranks, and is not, is named: at a step, and before a checkpoint."""

from __future__ import annotations

import gc
import random
import weakref

import numpy as np
import pytest
import torch

from autoddp.errors import Disagreement
from autoddp.options import Options
from autoddp.process.session import session
from autoddp.report import Report
from autoddp.training import consistency
from autoddp.training.fingerprint import Fingerprint
from autoddp.training.replica import KEPT
from tests.support.ranks import run_ranks


def on_ranks(script, size):
    """`script(rank)` in a job of all features."""

    def rank(group):
        with session(group.world, Options(), group, Report()):
            return script(group.rank)

    return run_ranks(rank, size)


def said(act):
    """What is raised, or nothing."""
    try:
        act()
    except Disagreement as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("by", "exact", "differs"), [(1e-9, False, False), (1e-9, True, True), (1e-2, False, True)]
)
def test_rounding_is_forgiven_unless_all_is_to_be_exact(by, exact, differs):
    def rank(group):
        found = Fingerprint()
        found.add("a", [torch.ones(3), torch.zeros(0)])
        found.add("b", [torch.tensor([1.0, -1.0], dtype=torch.float64) * (1 + by * group.rank)])
        return said(lambda: found.compare(group, "train.py:1", exact))

    zero, one, two = run_ranks(rank, 3)
    assert zero == one == two
    assert (
        zero.startswith("train.py:1: b is not the same on all ranks (rank 0 has 0, 2 without signs")
        == differs
    )
    assert bool(zero) == differs


DRIFTS = {
    "parameter 0 of 2": lambda model: model.weight.data.mul_(2),
    "the state of the generator of torch on the CPU": lambda model: torch.rand(1),
    "the state of the generator of random": lambda model: random.random(),
    "the state of the generator of numpy": lambda model: np.random.rand(),
}


def steps(count):
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(count):
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


@pytest.mark.parametrize("what", DRIFTS)
def test_a_rank_that_drifts_is_named_at_a_step_and_before_a_checkpoint(what, tmp_path, monkeypatch):
    monkeypatch.setattr(consistency, "EVERY", consistency.CHECKED + 2)

    def script(rank):
        model, optimizer = steps(consistency.CHECKED)
        if rank == 2:
            DRIFTS[what](model)
        path = tmp_path / "model.pt"
        saved = said(lambda: torch.save(model.state_dict(), path))
        model.zero_grad()

        def step():
            torch.autograd.backward(model(torch.ones(2, 3)).sum())
            optimizer.step()

        return saved, path.exists(), said(step), said(step)

    for saved, there, quiet, stepped in on_ranks(script, 3):
        assert what in saved
        assert "is not the same on all ranks" in saved
        assert "rank 2 " in saved
        assert not there  # a checkpoint of ranks that differ is not written
        assert not quiet  # between two comparisons
        assert what in stepped


def test_leaves_that_nothing_steps_are_not_kept():
    def script(rank):
        model, made = torch.nn.Linear(3, 1), []
        for _ in range(30):
            image = torch.ones(2, 3, requires_grad=True)
            model(image).sum().backward()
            made.append(weakref.ref(image))
        del image
        gc.collect()
        return sum(ref() is not None for ref in made)

    # those of the reducers and of the latest backward
    assert all(count <= KEPT + 1 for count in on_ranks(script, 2))


def test_optimizers_that_one_rank_has_freed_are_no_disagreement(tmp_path):
    """k-fold: earlier folds' optimizers lie in reference cycles, collected when a rank likes."""

    def script(rank):
        gc.disable()
        for fold in range(12):
            model, optimizer = steps(2)
            optimizer.itself = optimizer
            if rank:
                del optimizer
                gc.collect()
            torch.save(model.state_dict(), tmp_path / f"{fold}.pt")
        return True

    assert on_ranks(script, 2) == [True, True]
