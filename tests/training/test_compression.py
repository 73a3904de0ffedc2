"""Compressed gradients: what torch's hooks make of them, on our reducers."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from autoddp.errors import BadInput
from autoddp.options import Options
from autoddp.training.compression import START
from tests.support.training import assert_same, batches, mlp, on_ranks, rows, sgd

pytestmark = pytest.mark.slow

VIEWS = ("global", "local")


def first_gradients(run, parts=1):
    """Of one batch, or of parts of it, by themselves."""
    torch.manual_seed(0)
    model, (x, y) = mlp(), next(iter(batches(12, 12)))
    found = []
    for x_of, y_of in zip(x.chunk(parts), y.chunk(parts), strict=True):
        model.zero_grad()
        F.cross_entropy(model(x_of), y_of).backward()
        found.append([p.grad.clone() for p in model.parameters()])
    return found, [(d.where, d.what) for d in run.report.of("compression")]


@pytest.fixture(scope="module")
def parts():
    found = on_ranks(lambda run: [first_gradients(run, ranks) for ranks in (2, 3)], 1)[0]
    assert not any(said for _, said in found)
    return {ranks: gradients for ranks, (gradients, _) in zip((2, 3), found, strict=True)}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(("how", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_gradients_are_the_sum_of_those_in_half_precision(parts, how, dtype, ranks, view):
    wanted = [
        sum(g.to(dtype) / ranks for g in of_all).double()
        for of_all in zip(*parts[ranks], strict=True)
    ]
    # of three, the order in which they are added counts
    close = 1e-12 if ranks == 2 else 4 * torch.finfo(dtype).eps
    for (found,), said in on_ranks(first_gradients, ranks, compress=how, view=view):
        assert_same(wanted, found, close)
        assert said[0][0] == f"--compress {how}"
        assert said[0][1].endswith("numbers are not one process's")


def ranks_of_gradients(run):
    """Of a large matrix, whose reducer has several buckets; a gradient is 0 at all times."""
    model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(4)], nn.Linear(256, 8))
    optimizer, seen = sgd(model, 0.01), []
    for _ in range(2):
        for x, y in DataLoader(rows(8 * START, 256, 8), 8):
            optimizer.zero_grad()
            (F.cross_entropy(model(x), y) + 0 * model[1].weight.sum()).backward()
            optimizer.step()
            seen.append(int(torch.linalg.matrix_rank(model[2].weight.grad, rtol=1e-9)))
    assert all(p.isfinite().all() for p in model.parameters())
    return seen, [p.sum() for p in model.parameters()]


@pytest.mark.parametrize("view", VIEWS)
def test_low_ranks_begin_after_some_steps(view):
    found = on_ranks(ranks_of_gradients, 2, compress="powersgd:2", view=view)
    ranks, sums = found[0]
    assert min(ranks[:START]) > 2
    assert set(ranks[START:]) == {2}
    assert_same(sums, found[1][1], 1e-12)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"compress": "int8"},
            "^--compress is 'int8'; it takes none, fp16, bf16, powersgd or",
        ),
        ({"compress": "powersgd:0"}, "^--compress is 'powersgd:0'; it takes"),
        (
            {"compress": "fp16", "strict": True},
            "^--compress is 'fp16' with --strict, but its gradients",
        ),
        (
            {"compress": "bf16", "average_every": "2", "view": "local"},
            "^--compress is 'bf16' with --average-every, where none travel",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(given, message):
    with pytest.raises(BadInput, match=message):
        Options(**given)
