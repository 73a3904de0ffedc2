"""Local SGD: against averaging by hand, in one process."""

import copy
import gc

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from autoddp.errors import BadInput, Disagreement
from autoddp.options import Options
from tests.support.cli import fork_cli
from tests.support.training import Scripts, assert_same, batches, mlp, on_ranks, sgd, train, weights

pytestmark = pytest.mark.slow

RANKS = 2
script = Scripts()


def local(every):
    return {"view": "local", "average_every": every}


def equal(found):
    """Whether all ranks have the same."""
    return all(
        torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True)
    )


def by_hand(every, epochs=2, ranks=2):
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


@pytest.fixture(scope="module")
def alone():
    def script(run):
        found = {}
        for name, act in {
            "two": lambda: by_hand(2),
            "three": lambda: by_hand(2, ranks=3),
            "gradients": lambda: every_step(run),
        }.items():
            torch.manual_seed(0)
            found[name] = act()
        return found

    return on_ranks(script, 1)[0]


@pytest.fixture(scope="module")
def every_second():
    """By name, what the functions below give on each rank."""
    return {
        name: [rank.value for rank in ranks]
        for name, ranks in script.run(RANKS, **local("2")).items()
    }


@script
def plain():
    model = mlp()
    train(model, batches(20, 4), 2, sgd(model, momentum=0.9))
    return weights(model)


def test_every_second_step_and_at_the_end_of_a_loader(alone, every_second):
    for found in every_second["plain"]:
        assert_same(alone["two"], found, 1e-12)


def three_parts(run):
    model = mlp()
    train(model, batches(30, 6), 2, sgd(model, momentum=0.9))
    return weights(model)


def test_on_three_ranks(alone):
    for found in on_ranks(three_parts, 3, **local("2")):
        assert_same(alone["three"], found, 1e-12)


def every_step(run):
    model = mlp()
    train(model, batches(24, 8), 2)
    return weights(model)


def test_every_step_is_as_averaged_gradients(alone):
    for found in on_ranks(every_step, RANKS, **local("1")):
        assert_same(alone["gradients"], found, 1e-12)


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
            model.eval()  # nothing is left to be averaged
            model.train()
        return seen

    zero, one = on_ranks(script, RANKS, **local("3"))
    assert [equal(pair) for pair in zip(zero, one, strict=True)] == [True, True]


def step(model, optimizer, loader):
    x, y = next(loader)
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    return weights(model)


def test_an_optimizer_may_be_collected_while_ranks_meet():
    def script(run):
        model, kept = mlp(), []
        kept.append(sgd(model))
        confer = run.group.confer

        def and_collect(*args):
            said = confer(*args)
            if run.group.rank:
                kept.clear()
                gc.collect()
            return said

        run.group.confer = and_collect
        for x, y in batches(8, 4):
            F.cross_entropy(model(x), y).backward()
            kept[0].step()
        run.group.confer = confer
        return weights(model)

    assert equal(on_ranks(script, RANKS, **local("epoch")))


def test_evaluation_saves_and_the_end_see_averaged_weights(tmp_path):
    def script(run):
        model = mlp()
        optimizer, loader = sgd(model), iter(batches(40, 4))
        seen = {"a step": step(model, optimizer, loader)}
        model[0].eval()
        seen["a part's eval"] = weights(model)
        model.eval()
        seen["eval"] = weights(model)
        step(model, optimizer, loader)
        with torch.no_grad():
            seen["no_grad"] = [model(torch.ones(1, 5)), *weights(model)]
        step(model, optimizer, loader)
        torch.save(model.state_dict(), tmp_path / f"{run.world.rank}.pt")
        seen["save"] = weights(model)
        step(model, optimizer, loader)
        run.group.conclude()
        return seen | {"end": weights(model)}

    found = on_ranks(script, RANKS, **local("epoch"))
    same = {name: equal([seen[name] for seen in found]) for name in found[0]}
    different = {"a step": False, "a part's eval": False}
    assert same == dict.fromkeys(("eval", "no_grad", "save", "end"), True) | different
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


@script
def two_optimizers():
    models, seen = [mlp(), mlp()], []
    optimizers = [sgd(model) for model in models]
    for n, (x, y) in enumerate(batches(20, 4)):
        for model, optimizer in zip(models, optimizers, strict=True):
            if model is models[0] or n % 2:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
        seen.append([weights(model) for model in models])
    return seen


def test_two_optimizers_have_their_own_periods(every_second):
    zero, one = every_second["two_optimizers"]
    same = [
        [equal(pair) for pair in zip(a, b, strict=True)] for a, b in zip(zero, one, strict=True)
    ]
    assert same == [[False, True], [True, False], [False, False], [True, True], [False, True]]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"average_every": "4"},
            "^--average-every is '4' with --view global, where all ranks train one model",
        ),
        (
            {"average_every": "0", "view": "local"},
            "^--average-every is '0'; it takes a number of steps, from 1",
        ),
        (
            {"average_every": "often", "view": "local"},
            "^--average-every is 'often'; it takes a number of steps",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(given, message):
    with pytest.raises(BadInput, match=message):
        Options(**given)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(256, 10))

    def forward(self, x):
        return self.head(self.body(x))


def digits():
    """Real handwritten digits: for training, and for a test."""
    data = load_digits()
    images = torch.tensor(data.images).float().unsqueeze(1) / 16
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    kinds = torch.tensor(data.target)
    return [TensorDataset(images[some], kinds[some]) for some in (order[:1400], order[1400:])]


def test_digits_averaged_every_epoch_by_four_ranks():
    def script(run):
        torch.set_default_dtype(torch.float32)
        torch.manual_seed(1)
        train_set, test_set = digits()
        net, accuracies = Net(), []
        optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
        for _ in range(3):
            train(net, DataLoader(train_set, 32, shuffle=True), 1, optimizer)
            net.eval()
            with torch.no_grad():
                x, y = test_set.tensors
                accuracies.append((net(x).argmax(1) == y).double().mean().item())
            net.train()
        return accuracies

    found = on_ranks(script, 4, **local("epoch"))
    assert found == [found[0]] * 4
    first, second, third = found[0]
    assert 0.85 < first < second < third


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
