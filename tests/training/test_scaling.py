import pytest
import torch
from torch.optim.lr_scheduler import LinearLR, ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

from tests.support.training import assert_same, mlp, on_ranks, rows, sgd, train, weights

pytestmark = pytest.mark.slow


def sizes(run):
    """Batch sizes of every kind of loader, and of their batches."""
    data = rows(24)
    loaders = [
        DataLoader(data, 4, shuffle=True),
        DataLoader(data, 4, True),
        DataLoader(data, batch_size=4, sampler=RandomSampler(data)),
        DataLoader(data, 4),
        DataLoader(data, 4, sampler=SequentialSampler(data)),
        DataLoader(data, batch_sampler=[[0, 1], [2, 3]]),
        DataLoader(data, batch_size=None, shuffle=True),
    ]
    return [x.batch_size for x in loaders], [len(x) for x in loaders], run.report.of("scaling")


@pytest.mark.parametrize("view", ["global", "local"])
@pytest.mark.parametrize("nproc", [2, 3])
def test_training_batches_grow_with_the_ranks(nproc, view):
    batch, length, said = on_ranks(sizes, nproc, batch="per-rank", view=view)[0]
    assert batch == [4 * nproc] * 3 + [4, 4, None, None]
    assert length == [24 // (4 * nproc)] * 3 + [6, 6, 2, 24]
    assert {d.what for d in said} == {f"batches of {4 * nproc} instead of 4"}


def test_unasked_nothing_grows():
    batch, length, said = on_ranks(sizes, 2)[0]
    assert batch == [4] * 5 + [None, None]
    assert length == [6] * 5 + [2, 24]
    assert said == []


def rates(run):
    """Of groups with a rate of their own and without, before and after schedulers."""
    first, second, third = mlp(), mlp(), mlp()
    groups = [{"params": first.parameters()}, {"params": second.parameters(), "lr": 0.2}]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    optimizer.add_param_group({"params": third.parameters(), "lr": 0.4})
    adam = torch.optim.AdamW(mlp().parameters(), lr=torch.tensor(0.01))
    seen = [[g["lr"] for g in optimizer.param_groups], [float(g["lr"]) for g in adam.param_groups]]
    schedulers = [
        StepLR(optimizer, 1, 0.5),
        LinearLR(adam, 0.1, total_iters=4),
        ReduceLROnPlateau(optimizer),
    ]
    for scheduler in schedulers[:2]:
        scheduler.optimizer.step()
        scheduler.step()
    seen += [
        [g["lr"] for g in optimizer.param_groups],
        schedulers[0].base_lrs,
        schedulers[1].get_last_lr(),
    ]
    return seen, {d.what for d in run.report.of("scaling") if "rate" in d.what}


@pytest.mark.parametrize(("how", "factor"), [("linear", 3.0), ("sqrt", 3**0.5)])
def test_learning_rates_go_with_the_batch(how, factor):
    alone, _ = on_ranks(rates, 1)[0]
    for seen, said in on_ranks(rates, 3, batch="per-rank", scale_lr=how):
        assert_same(
            [[float(x) * factor for x in some] for some in alone],
            [list(map(float, s)) for s in seen],
        )
        assert said == {f"learning rate times {factor:g}"}


def test_unasked_rates_stay():
    alone, _ = on_ranks(rates, 1)[0]
    for options in ({}, {"batch": "per-rank"}):
        seen, said = on_ranks(rates, 2, **options)[0]
        assert_same([list(map(float, some)) for some in alone], [list(map(float, s)) for s in seen])
        assert said == set()


def test_the_training_is_that_of_one_process_with_that_batch_and_rate():
    def grown(run):
        scale = 2 if run.world.world_size == 1 else 1
        model, data = mlp(), rows(22)
        optimizer = sgd(model, 0.1 * scale)
        return train(model, DataLoader(data, 4 * scale, shuffle=True), 2, optimizer), weights(model)

    alone = on_ranks(grown, 1)[0]
    for found in on_ranks(grown, 2, batch="per-rank", scale_lr="linear"):
        assert_same(alone, found)


def test_a_copied_or_loaded_optimizer_is_not_scaled_again():
    def script(run):
        model = mlp()
        first = sgd(model, 0.1)
        second = sgd(model, 0.3)
        second.load_state_dict(first.state_dict())
        return second.param_groups[0]["lr"], first.defaults["lr"]

    assert on_ranks(script, 2, batch="per-rank", scale_lr="linear") == [(0.2, 0.1)] * 2
