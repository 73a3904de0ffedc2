"""Local SGD: against averaging by hand, in one process."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from autoddp.errors import BadInput, Disagreement
from autoddp.options import Options
from tests.support.cli import fork_cli
from tests.support.training import assert_same, batches, mlp, on_ranks, sgd, train, weights

pytestmark = pytest.mark.slow

RANKS = 2


def local(every):
    return {"view": "local", "average_every": every}


def equal(found):
    """Whether all ranks have the same."""
    return all(
        torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True)
    )


def by_hand(every, epochs=2, ranks=RANKS):
    """A model for each rank, on its part of every batch; also averaged where the loader ends."""
    first = mlp()
    models = [first, *(copy.deepcopy(first) for _ in range(ranks - 1))]
    optimizers = [sgd(model, momentum=0.9) for model in models]
    loader, count = batches(10 * ranks, 2 * ranks), 0
    for _ in range(epochs):
        for place, (x, y) in enumerate(loader):
            parts = x.chunk(ranks), y.chunk(ranks)
            for model, optimizer, x_of, y_of in zip(models, optimizers, *parts, strict=True):
                optimizer.zero_grad()
                F.cross_entropy(model(x_of), y_of).backward()
                optimizer.step()
            count += 1
            if count % every == 0 or place == len(loader) - 1:
                average(models)
    return weights(first)


def average(models):
    with torch.no_grad():
        for same in zip(*(model.parameters() for model in models), strict=True):
            mean = sum(same) / len(models)
            for p in same:
                p.copy_(mean)


def test_every_second_step_and_at_the_end_of_a_loader():
    def script(run):
        model = mlp()
        train(model, batches(20, 4), 2, sgd(model, momentum=0.9))
        return weights(model)

    (alone,) = on_ranks(lambda: by_hand(2), 1)
    for found in on_ranks(script, RANKS, **local("2")):
        assert_same(alone, found, 1e-12)


def test_numbers_of_steps_may_differ():
    """As where a scaler finds an infinite gradient on one rank."""

    def script(run):
        model, seen = nn.Sequential(mlp(), nn.Linear(3, 3)), []
        optimizer = sgd(model)
        for _ in range(2):
            for n, (x, y) in enumerate(batches(40, 4)):
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                if run.world.rank == 0 or n % 3:
                    optimizer.step()
            seen.append(weights(model))
        return seen

    zero, one = on_ranks(script, RANKS, **local("3"))
    assert [equal(pair) for pair in zip(zero, one, strict=True)] == [True, True]


def step(model, optimizer, loader):
    x, y = next(loader)
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    return weights(model)


def test_saves_and_the_end_see_averaged_weights(tmp_path):
    def script(run):
        model = mlp()
        optimizer, loader = sgd(model), iter(batches(40, 4))
        seen = {"a step": step(model, optimizer, loader)}
        torch.save(model.state_dict(), tmp_path / f"{run.world.rank}.pt")
        seen["save"] = weights(model)
        step(model, optimizer, loader)
        run.group.conclude()
        return seen | {"end": weights(model)}

    found = on_ranks(script, RANKS, **local("epoch"))
    same = {name: equal([seen[name] for seen in found]) for name in found[0]}
    assert same == {"a step": False} | dict.fromkeys(("save", "end"), True)
    assert_same(found[0]["save"], list(torch.load(tmp_path / "0.pt").values()), 1e-15)


def test_a_save_that_one_rank_makes_amid_an_epoch_is_an_error(tmp_path):
    def script(run):
        model = mlp()
        optimizer, loader = sgd(model), iter(batches(8, 4))
        step(model, optimizer, loader)

        def part():
            if run.world.rank == 0:
                torch.save(model.state_dict(), tmp_path / "a.pt")
            return list(loader)

        with pytest.raises(
            Disagreement, match=r"rank 0 at torch.save at .*, rank 1 at the end of the load"
        ):
            part()

    on_ranks(script, RANKS, **local("5"))


def test_what_makes_no_sense_is_refused():
    with pytest.raises(BadInput, match="with --view global, where all ranks train one model"):
        Options(average_every="4")
    with pytest.raises(BadInput, match="it takes a number of steps, from 1"):
        Options(average_every="0", view="local")


SCRIPT = """\
import atexit
import torch
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
atexit.register(lambda: print("end", model.weight.sum().item()))
for n, (x, y) in enumerate(DataLoader(TensorDataset(torch.randn(16, 3), torch.randn(16, 1)), 4)):
    (model(x) - y).pow(2).mean().backward()
    optimizer.step()
    if n == 2:
        break
print("before", model.weight.sum().item())
"""


def test_the_command_averages_at_the_end_of_the_script(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    options = ("--view", "local", "--average-every", "50", "--log-dir", "logs")
    done = fork_cli("run", "--nproc", "2", *options, "train.py", cwd=tmp_path)
    assert done.rc == 0, done.err
    assert (
        "[autoddp] --average-every 50: each rank trains by itself on its share; weights are"
        in done.err
    )
    (log,) = (path.read_text() for path in (tmp_path / "logs").iterdir())
    (before, end), (other_before, other_end) = done.out.splitlines(), log.splitlines()
    assert before != other_before
    assert end == other_end
