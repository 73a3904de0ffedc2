"""The placement of a loop is chosen by its speed, changes no number, and changes on all ranks."""

from __future__ import annotations

import json
import os
import threading
from itertools import count, cycle
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, TensorDataset

from autoddp import torch_internals
from autoddp.training import placement
from autoddp.training.parameters import choice
from autoddp.training.placement import AGAIN, CALLS, COUNTED, OTHERS
from autoddp.training.step_costs import Step, on_cpus
from autoddp.view import ShardedTensor as SHARDED
from autoddp.view.redistribute import Boundary
from benchmarks import never_slower
from tests.support.cli import environ
from tests.support.same import same_text
from tests.support.training import (
    TWO_OR_THREE,
    Scripts,
    assert_as_alone,
    assert_same,
    batches,
    grads,
    mlp,
    on_ranks,
    sgd,
    train,
    weights,
)

SCRIPTS = Path(__file__).parents[1] / "scripts" / "placement"
script = Scripts()


def changing(function):
    """A script in which the placement changes at each step, forth and back."""

    def whole(run):
        seen = set()

        def change(*_):
            seen.add(run.view.replicates)
            run.view.replicates = not run.view.replicates

        hook = register_optimizer_step_post_hook(change)
        try:
            found = function()
        finally:
            hook.remove()
        assert seen == {False, True}
        return found

    script[function.__name__] = whole
    return function


@changing
def dropout_and_batchnorm():
    model = nn.Sequential(
        nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 3)
    )
    losses = train(model, batches(44), 3, sgd(model, momentum=0.9))
    model.eval()
    return losses, weights(model), model(torch.randn(6, 5)), torch.rand(2)


@changing
def gradients_that_add_up():
    model = mlp()
    optimizer, found = sgd(model), []
    for number, (x, y) in zip(range(24), cycle(batches(30, 6)), strict=False):
        F.cross_entropy(model(x), y).backward()
        if number == 10:
            found.append(grads(model))
        if number % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()
    return found, weights(model)


@changing
def steps_between_backwards_of_one_round():
    first, second = mlp(), mlp()
    one, two = sgd(first), sgd(second)
    for x, y in batches(60, 6):
        F.cross_entropy(first(x), y).backward()  # adds up over steps of the other
        two.zero_grad()
        F.cross_entropy(second(x), y).backward()
        two.step()
    found = grads(first)
    one.step()
    return found, weights(first, second)


@changing
def a_gan_with_two_loaders():
    maker, judge = nn.Linear(4, 5), mlp(classes=1)
    of_maker, of_judge = sgd(maker), sgd(judge)
    noises, losses = batches(40, 7, shuffle=False), []
    for (real, _), (x, _) in zip(batches(40, 7), noises, strict=True):
        made = maker(x[:, :4])
        of_judge.zero_grad()
        loss = F.softplus(-judge(real)).mean() + F.softplus(judge(made.detach())).mean()
        loss.backward()
        of_judge.step()  # what was made before this is used behind it
        of_maker.zero_grad()
        F.softplus(-judge(made)).mean().backward()
        of_maker.step()
        losses.append(loss.item())
    return losses, weights(maker, judge)


@changing
def graphs_and_sums_that_outlive_a_step():
    model, total, before = mlp(), torch.zeros(()), None
    optimizer, hidden = sgd(model), None
    for x, y in batches(48, 8):
        out = model(x)
        loss = F.cross_entropy(out, y)
        total += loss.detach()
        if before is not None:
            optimizer.zero_grad()
            (before[0] + (out * hidden).mean()).backward()
            optimizer.step()
        with torch.no_grad():
            hidden = out.tanh() if hidden is None else 0.5 * hidden + out.detach()
        before = (F.cross_entropy(model(x), y), y)
    return total, hidden, weights(model)


@changing
def batches_that_were_made_before():
    model = mlp()
    optimizer, kept = sgd(model), [*batches(40, 8)]
    for x, y in kept + [(torch.randn(8, 5), torch.randint(3, (8,))) for _ in range(4)] + kept:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return weights(model)


@changing
def second_derivatives():
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer, losses = sgd(model), []
    for _ in range(6):
        x = torch.rand(9, 2, requires_grad=True)
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        (again,) = torch.autograd.grad(slope.pow(2).sum(), x, create_graph=True)
        norm = torch.autograd.grad(model(x).mean(), [*model.parameters()])
        loss = (again - x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append((loss.item(), *norm))
    return losses, weights(model)


@changing
def hooks_on_parameters():
    model, seen, dummy = mlp(), [], sgd(mlp())
    model[0].weight.register_hook(lambda g: seen.append(g.clone()))
    model[0].bias.register_hook(lambda g: g.clamp(-0.01, 0.01))
    model[2].weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    optimizer = sgd(model)
    for number, (x, y) in enumerate(batches(90, 6)):
        F.cross_entropy(model(x), y).backward()
        if number == 8:  # by rows, and averaged later
            model[2].bias.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
        dummy.step()
        if number % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
    return seen, weights(model)


@changing
def checkpoints_of_batches_from_before_the_step():
    body, other = nn.Sequential(nn.Linear(5, 5), nn.Dropout(0.2), nn.Tanh()), mlp()
    optimizer, late = sgd(other), sgd(body)
    for number, (x, y) in zip(count(), batches(48, 8), strict=False):
        given = torch.randn(8, 5, requires_grad=True) if number % 2 else x
        hidden = checkpoint(body, given, use_reentrant=False)
        loss = F.cross_entropy(other(hidden), y)
        F.cross_entropy(other(x), y).backward()
        optimizer.step()
        other.zero_grad()
        hidden = hidden.square().mean()  # computed again, in the way of its forward
        hidden.backward()
        late.step()
        late.zero_grad()
    return loss.item(), weights(body, other)


@changing
def sparse_gradients():
    table, head = nn.Embedding(11, 4, sparse=True), nn.Linear(4, 3)
    optimizer = torch.optim.SGD([*table.parameters(), *head.parameters()], 0.5)
    for _ in range(5):
        tokens, y = torch.randint(11, (7, 3)), torch.randint(3, (7,))
        F.cross_entropy(head(table(tokens).mean(1)), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return weights(table, head)


@changing
def a_module_that_turns_its_inputs():
    model, head = nn.GRU(3, 4), nn.Linear(4, 2)
    optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()], 0.01)
    for _ in range(6):
        x, y = torch.randn(5, 9, 3), torch.randint(2, (9,))
        F.cross_entropy(head(model(x)[0][-1]), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return weights(model, head)


class Items(Dataset):
    """Samples that are drawn, or not, and not in torch's own data set."""

    def __init__(self, draws=False):
        self.data, self.draws = torch.randn(40, 5), draws

    def __len__(self):
        return 40

    def __getitem__(self, at):
        return self.data[at] + (torch.rand(5) if self.draws else 0), at % 3


def padded(items):
    xs, ys = zip(*items, strict=True)
    return torch.stack(xs), torch.tensor(ys)


LOADERS = {
    "items": {},
    "workers": {"num_workers": 2, "persistent_workers": True},
    "collated": {"collate_fn": padded},
    "collated_by_workers": {"collate_fn": padded, "num_workers": 1},
}
for kind, given in LOADERS.items():
    for draws in (False, True):

        def loads(given=given, draws=draws):
            model = mlp()
            loader = DataLoader(Items(draws), 6, shuffle=True, **given)
            return train(model, loader, 2), weights(model), torch.rand(1)

        loads.__name__ = f"{kind}{'_that_draw' * draws}"
        if not (draws and "worker" in kind):  # seeds of workers: see `test_sharing`
            changing(loads)


@TWO_OR_THREE
@pytest.mark.parametrize("name", script)
def test_numbers_are_those_of_one_process_while_the_way_changes(seen, name, nproc):
    assert_as_alone(seen[1][name][0], seen[nproc][name])


def in_turn(run, ranks=(0, 1)):
    """A training in which these ranks alone change the way, at one step."""
    model = mlp()
    optimizer, losses = sgd(model), []
    for number, (x, y) in enumerate(batches(200, 8)):
        if number == 7 and run.world.rank in ranks:
            run.view.replicates = True
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        losses.append(len(x))
    return weights(model)


def test_ranks_that_change_at_different_moments_end_in_an_error():
    """So all of them have to be told at one step."""
    assert len(on_ranks(in_turn)) == 2
    with pytest.raises(AssertionError, match=r"Disagreement|rank \d of 2"):
        on_ranks(lambda run: in_turn(run, ranks=(1,)))


def test_nobody_averages_where_each_rank_computes_all():
    """The stamps of collectives stay the same, but for a comparison of weights now and then."""

    def counted(run):
        model = mlp()
        optimizer, found = sgd(model), []
        for x, y in batches(200, 8):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            found.append(run.group.collective_check.count)
        return type(x) is torch.Tensor, found[-1] - found[6]

    assert on_ranks(counted, placement="replicated") == [(True, 0)] * 2
    assert on_ranks(counted)[0][1] > 0


def test_graphs_of_rows_are_counted_while_they_are_there():
    """A backward asks whether one is left, and else leaves its graph unread."""

    def counted(run):
        model, found = mlp(), [len(Boundary.nodes)]
        for way in (False, True):
            run.view.replicates = way
            loss = model(torch.randn(6, 5)).sort(0)[0].square().mean()  # gathers
            found.append(len(Boundary.nodes))
            kept = loss + 1
            loss.backward()
            del loss
            found.append(len(Boundary.nodes))
            del kept
            found.append(len(Boundary.nodes))
        return found

    for before, made, kept, gone, *whole in on_ranks(counted):
        assert 0 == before == gone < kept <= made
        assert whole == [0, 0, 0]


def test_work_that_goes_on_counts_as_not_shared():
    """`share` is asked at the end, when no call has ended what ranks do without sharing."""

    def share(run):
        chosen(run)
        return run.view.work.share()

    assert on_ranks(share, placement="replicated") == [0] * 2


def test_ranks_that_share_parameters_are_not_left_to_torch():
    def alike(run):
        model, found = mlp(), [run.view.alike]
        sgd(model)  # shards them
        found.append(run.view.alike)
        run.view.replicates = False
        run.view.replicates = True
        return [*found, run.view.alike]

    sharded = on_ranks(alike, placement="replicated", parameters="sharded")
    assert sharded == [[True, False, False]] * 2
    assert on_ranks(alike, placement="replicated") == [[True, True, True]] * 2


def test_weights_are_compared_where_nobody_averages():
    """At one step of many, with parameters in another order on each rank, too."""

    def drifts(run, at):
        model = mlp()
        parameters = [*model.parameters()]
        optimizer = torch.optim.SGD(parameters[:: 1 - 2 * run.world.rank], 0.1)
        for number in range(120):
            if number == at and run.world.rank:
                with torch.no_grad():
                    parameters[0][0, 0] += 1
            optimizer.zero_grad()
            F.cross_entropy(model(torch.ones(4, 5)), torch.ones(4).long()).backward()
            optimizer.step()

    on_ranks(lambda run: drifts(run, None), placement="replicated")
    with pytest.raises(AssertionError, match="is not the same on all ranks"):
        on_ranks(lambda run: drifts(run, 30), placement="replicated")


@pytest.mark.parametrize("placement", ["sharded", "replicated"])
def test_weights_that_are_updated_by_hand_are_compared(placement):
    def drifts(run, by):
        model = mlp()
        for number in range(130):
            F.cross_entropy(model(torch.ones(4, 5)), torch.ones(4).long()).backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.1 * p.grad
                    p.grad = None
                if number == 40 and run.world.rank:
                    model[0].weight[0, 0] += by

    on_ranks(lambda run: drifts(run, 0.0), placement=placement)
    with pytest.raises(AssertionError, match="is not the same on all ranks"):
        on_ranks(lambda run: drifts(run, 1.0), placement=placement)


def test_gradients_that_are_set_by_hand_are_compared():
    """Behind a training by backwards, too, of which nothing is compared."""

    def drifts(run, asks=True):
        model = mlp()
        optimizer, parameters = sgd(model), [*model.parameters()]
        for number in range(120):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(torch.ones(4, 5)), torch.ones(4).long())
            if number < 20:
                loss.backward()
            else:
                run.view.replicates = number < 60
                for p, g in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                    p.grad = g + run.world.rank * asks
            optimizer.step()

    on_ranks(lambda run: drifts(run, asks=False), placement="replicated")
    with pytest.raises(AssertionError, match="is not the same on all ranks"):
        on_ranks(drifts, placement="replicated")


def test_a_script_goes_on_after_a_sample_that_cannot_be_read():
    """All ranks have fetched the same, and later batches are by rows again."""

    def fetched(run=None):
        indices = [*range(60)]
        loader, found = DataLoader(TensorDataset(torch.arange(60.0)), 6, sampler=indices), []
        found += [x.sum().item() for (x,) in loader]  # by rows
        batches, indices[13] = iter(loader), 99
        for number in range(10):
            if run is not None:
                run.view.replicates = number < 6
            try:
                found.append(next(batches)[0].sum().item())
            except IndexError:
                found.append("out of range")
        return found

    assert on_ranks(fetched) == [fetched()] * 2


def test_averages_remain_on_ranks_that_may_not_be_alike():
    """On two nodes processors may differ, and an accelerator sums in any order."""

    def counted(run, kind=""):
        run.group.kind, run.view.replicates = kind, True
        model = mlp()
        before = run.group.collective_check.count
        F.cross_entropy(model(torch.ones(4, 5)), torch.ones(4).long()).backward()
        return run.group.collective_check.count > before

    there = Scripts(one=counted).run(2, nodes=(0, 1), placement="replicated")["one"]
    assert [seen.value for seen in there] == [True, True], there
    assert on_ranks(lambda run: counted(run, "cuda"), placement="replicated") == [True, True]
    assert on_ranks(counted, placement="replicated") == [False, False]


@pytest.mark.parametrize("name", LOADERS)
def test_all_loaders_hand_out_whole_batches(name):
    def kinds(run):
        loader = DataLoader(Items(draws=name == "items"), 6, **LOADERS[name])
        return [type(x) is torch.Tensor and len(x) for x, _ in loader]

    assert on_ranks(kinds, placement="replicated") == [[6] * 6 + [4]] * 2


def test_a_guess_of_rows_outlives_whole_batches():
    """A module that is called replicated does not show that its inputs cannot be sharded."""

    def dims(run):
        model, found = nn.GRU(3, 4), []
        for run.view.replicates in (False, True, False, False):
            found.append(getattr(model(torch.randn(5, 9, 3))[0], "shard_dim", None))
        return found

    assert on_ranks(dims) == [[1, None, 1, 1]] * 2


# ---- the choice


@pytest.fixture
def run(warm, tmp_path):
    """What a command makes of a script: its output, our lines, and the report's placements."""

    def command(script, *arguments, options=(), nproc=2):
        words = ("--nproc", str(nproc), "--report", "report.json", *options)
        folder = tmp_path / "-".join(["run", *options, str(nproc)])
        path, env = str(SCRIPTS / script), {"AUTODDP_PLACEMENT": ""}
        got = warm.run("autoddp", "run", *words, path, *arguments, folder=folder, env=environ(env))
        assert got.code == 0, got.err
        said = [line for line in got.err.splitlines() if "batches are" in line]
        made = json.loads((folder / "report.json").read_text())["decisions"]
        return got, said, [each["what"] for each in made if each["kind"] == "placement"]

    return command


def python(warm, folder, script, *arguments):
    got = warm.run("python", str(SCRIPTS / script), *arguments, folder=folder / "python")
    assert got.code == 0, got.err
    return got.out


@TWO_OR_THREE
def test_the_faster_way_is_chosen_and_said(run, warm, tmp_path, nproc):
    got, said, decisions = run("gathers.py", nproc=nproc)  # by default
    assert len(said) == len(decisions) == 1
    assert decisions[0].startswith("batches are replicated: a step of 55 functions, ")
    assert said[0].endswith("; --placement replicated does so from the start")
    same_text(python(warm, tmp_path, "gathers.py"), got.out, 1e-3, "stdout")


def test_the_choice_is_the_same_in_each_run(run):
    """Counts are those of the program: no clock, and no message that may be late."""
    found = [run("gathers.py", options=("--placement", "auto"))[2] for _ in range(3)]
    assert found[0] == found[1] == found[2]


@pytest.mark.slow
@pytest.mark.parametrize("name", never_slower.LOOPS)
def test_twenty_runs_of_the_benchmark_choose_alike(name, warm, tmp_path):
    """However busy the machine is, as here beside other tests."""
    loop, found = tmp_path / "loop.py", set()
    loop.write_text(never_slower.LOOP + never_slower.LOOPS[name])
    steps = str(CALLS + 20 if name == "evaluation" else 32)
    words = ("run", "-n", "2", "--placement", "auto", "--report", "report.json", str(loop), steps)
    for number in range(20):
        got = warm.run("autoddp", *words, folder=tmp_path / str(number))
        assert got.code == 0, got.err
        made = json.loads((got.folder / "report.json").read_text())["decisions"]
        (decision,) = [each["what"] for each in made if each["kind"] == "placement"]
        found.add(decision)
    assert len(found) == 1


def test_replicated_gives_the_bits_of_one_process(run, warm, tmp_path):
    got, said, decisions = run("gathers.py", options=("--placement", "replicated"))
    assert got.out == python(warm, tmp_path, "gathers.py")
    assert "sharded" not in got.err
    assert not said + decisions


def test_what_was_chosen_stays_unless_the_other_way_is_clearly_faster():
    """So a prediction close to the limit does not go to and fro."""

    def chosen(run, again=placement.AGAIN):
        found, placement.AGAIN = [], 6
        times = iter([(1.9e-3, 2e-3), (2.1e-3, 2e-3), (1.9e-3, 2e-3), (1.7e-3, 2e-3)])
        predict, Step.seconds = Step.seconds, lambda *_: next(times)
        optimizer = sgd(model := mlp())
        try:
            for number, (x, y) in enumerate(batches(8 * 22, 8), 1):
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
                if number in (3, 9, 15, 21):
                    found.append(run.view.replicates)
        finally:
            placement.AGAIN, Step.seconds = again, predict
        return found

    assert on_ranks(chosen, placement="auto") == [[False, True, True, False]] * 2


UNTRIED = {
    "deterministic": (("gathers.py", "deterministic"), (), "deterministic algorithms"),
    "parameters": (("gathers.py",), ("--parameters", "sharded"), "parameters are sharded"),
}


@pytest.mark.parametrize("name", UNTRIED)
def test_what_could_hurt_is_not_chosen(run, name):
    script, options, why = UNTRIED[name]
    _, said, (decision,) = run(*script, options=(*options, "--placement", "auto"))
    assert not said
    assert decision.startswith("batches are sharded")
    assert decision.endswith(f"but {why}" if name == "parameters" else why)


def test_the_local_view_has_no_placement(run):
    assert run("gathers.py", options=("--view", "local", "--placement", "auto"))[1:] == ([], [])


def chosen(run, steps=12, width=8):
    """The ways of a training's steps, and the decisions that this rank has noted."""
    model, ways = mlp() if width == 8 else wide(width), []
    optimizer = sgd(model)
    for x, y in batches(8 * steps, 8 if width == 8 else 8 * steps // 4):
        ways.append(type(x) is torch.Tensor)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return ways, [made.what for made in run.report.of("placement")]


def wide(width):
    return nn.Sequential(
        nn.Linear(5, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3)
    )


def test_four_ranks_on_two_cores_wait_longer_for_each_other():
    """A small transformer: replicated was 1.7 times as fast with four, 1.5 times with two."""
    step = Step(functions=42, operations=1e7, collectives=2)
    for ranks, cores in (2, 2), (4, 2):
        sharded, whole = step.seconds(on_cpus(ranks, cores), ranks, gradients=0, averaged=False)
        assert sharded > whole
    crowded, free = (step.seconds(on_cpus(4, cores), 4, 0, False) for cores in (2, 8))
    assert crowded[0] > free[0]
    assert crowded[1] == free[1]


def test_functions_without_a_gradient_and_convolutions_are_counted_apart():
    """The former take no backward, and an operation of the latter takes longer."""

    def counted(run):
        steps, predict = [], Step.seconds
        Step.seconds = lambda step, *given: steps.append(step) or predict(step, *given)
        model = nn.Sequential(nn.Unflatten(1, (1, 5)), nn.Conv1d(1, 2, 2), nn.Flatten())
        try:
            optimizer = sgd(model)
            for x, y in batches(32, 8):
                F.cross_entropy(model((x - 1.0).abs()), y).backward()
                optimizer.step()
        finally:
            Step.seconds = predict
        (step,) = steps
        return step.functions, step.forwards, step.operations, step.convolved

    # three passes of a product and a sum, for eight elements of eight rows, of two inputs each
    products = 3 * 2 * (8 * 8) * 2
    assert on_ranks(counted, placement="auto") == [(6, 3, products, products)] * 2


def test_the_prediction_is_for_the_cores_that_ranks_may_use():
    def counted(run):
        asked = []
        placement.on_cpus = lambda *given: asked.append(given) or on_cpus(*given)
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        chosen(run)
        return asked

    assert on_ranks(counted, placement="auto") == [[(2, 1)]] * 2


def test_all_ranks_change_at_the_same_step():
    """The batch after the step that is counted was not made yet."""
    for nproc in (2, 3):
        ways = [seen[0] for seen in on_ranks(chosen, nproc, placement="auto")]
        assert ways == [[False] * COUNTED + [True] * (12 - COUNTED)] * nproc


def test_a_step_with_enough_work_to_share_stays_sharded():
    def large(run):
        return chosen(run, 1000, 500)

    for ways, (decision,) in on_ranks(large, placement="auto"):
        assert ways == [False] * 4
        assert decision.startswith("batches are sharded: a step of 6 functions, ")


@pytest.mark.parametrize("poor", [0, 1])
def test_whole_batches_that_may_not_fit_on_one_rank_are_not_chosen(monkeypatch, poor):
    def rank(run):
        small = run.world.rank == poor
        monkeypatch.setattr(choice, "free_on_host", lambda ranks: -1 if small else 1 << 40)
        return chosen(run)

    ranks = on_ranks(rank, placement="auto")
    assert [any(ways) for ways, _ in ranks] == [False, False]
    assert ("may not fit" if poor == 0 else "another rank") in ranks[0][1][0]


def test_a_new_loop_is_counted_as_well():
    """Another optimizer steps, as in a search; ranks may free the old one at any moment."""

    def search(run):
        kept = []
        hook = register_optimizer_step_post_hook(lambda x, *_: run.world.rank and kept.append(x))
        try:
            return [chosen(run, 40)[0] for _ in range(2)]
        finally:
            hook.remove()

    (first, second), others = on_ranks(search, placement="auto")
    assert [first, second] == others
    assert first == [False] * COUNTED + [True] * (40 - COUNTED)
    assert second == [True] * OTHERS + [False] * (COUNTED - 1) + [True] * (41 - OTHERS - COUNTED)


def by_hand(model, steps, ask=False):
    """The ways of a training's steps that no optimizer makes."""
    ways = []
    for x, y in batches(8 * steps, 8):
        ways.append(type(x) is torch.Tensor)
        loss, parameters = F.cross_entropy(model(x), y), [*model.parameters()]
        if ask:
            found = torch.autograd.grad(loss, parameters)
        else:
            loss.backward()
            found = [p.grad for p in parameters]
        with torch.no_grad():
            for p, g in zip(parameters, found, strict=True):
                p -= 0.1 * g
                p.grad = None
    return ways


@pytest.mark.parametrize("ask", [False, True])
def test_backwards_are_the_steps_of_a_loop_without_an_optimizer(ask):
    found = on_ranks(lambda run: by_hand(mlp(), 40, ask), placement="auto")
    first = OTHERS + COUNTED - 1
    assert found == [[False] * first + [True] * (40 - first)] * 2


def test_a_loop_by_hand_and_one_of_an_optimizer_follow_each_other():
    """Each is chosen for; a backward before each step of an optimizer counts for that alone."""

    def both(run):
        first, (second, decisions), third = by_hand(mlp(), 30), chosen(run, 40), by_hand(mlp(), 30)
        return first[-1], second, third, len(decisions)

    (first, second, third, decisions), other = on_ranks(both, placement="auto")
    assert other == (first, second, third, decisions)
    assert first
    assert second == [True] * OTHERS + [False] * (COUNTED - 1) + [True] * (41 - OTHERS - COUNTED)
    assert third == [True] * 30
    assert decisions == 2


def test_ranks_count_alike_that_free_graphs_at_different_moments():
    """A graph of rows lies in a reference cycle, which a rank collects when it likes."""

    def training(run):
        first, second, kept = mlp(), mlp(), []
        optimizer, losses = sgd(nn.ModuleList([first, second])), []
        for x, y in batches(8 * 120, 8):
            loss = F.cross_entropy(first(x), y)
            if run.world.rank and not kept:
                kept.append(loss)
            optimizer.zero_grad()
            loss.backward(retain_graph=True)
            F.cross_entropy(second(x), y).backward()
            optimizer.step()
            losses.append(loss.item())
        return losses, weights(first, second)

    one, other = on_ranks(training, placement="auto")
    assert_same(one, other)


def evaluated(run, steps, grad=False):
    """What a policy's result is in each call: without gradients, or with some that are not used."""
    model, kinds = mlp(), []
    with torch.set_grad_enabled(grad):
        for _ in range(steps):
            out = model(torch.ones(8, 5))
            kinds.append(type(out) is torch.Tensor)
            out.sum().item()
    return kinds


@pytest.mark.parametrize("grad", [False, True])
def test_calls_of_modules_are_the_steps_of_a_loop_without_backwards(grad):
    first = CALLS + COUNTED - 2
    found = on_ranks(lambda run: evaluated(run, CALLS + 20, grad), placement="auto")
    assert found == [[False] * first + [True] * (CALLS + 20 - first)] * 2


def test_an_evaluation_has_its_own_choice_beside_a_training():
    """With work to share in the training, which calls many modules for each of its steps."""

    def both(run):
        model, cell = wide(1000), nn.RNNCell(5, 5)
        optimizer, ways = sgd(nn.ModuleList([model, cell]), 1e-4), []
        model(torch.ones(8, 5)).sum().backward()  # else these may be steps of an evaluation
        for _ in range(2):
            for x, y in batches(6000, 1000):
                h = x
                for _ in range(CALLS + OTHERS):
                    h = cell(x, h)
                ways.append(type(x) is torch.Tensor)
                F.cross_entropy(model(h), y).backward()
                optimizer.step()
                optimizer.zero_grad()
            ways.append(evaluated(run, CALLS + OTHERS + 20)[-1])
        return ways, [made.what.split(":")[0] for made in run.report.of("placement")]

    (ways, said), other = on_ranks(both, placement="auto")
    assert other == (ways, said)
    assert ways[:7] == [False] * 6 + [True]
    assert said == ["batches are sharded", "batches are replicated"]


def test_a_single_observation_is_no_batch():
    """A policy gets one of some numbers, a layer of its many rows, and an embedding some tokens."""

    def kinds(run):
        found, layers = [], (nn.Linear(4, 2), nn.Linear(4, 2), nn.Embedding(9, 3))
        for module in layers:
            module.register_forward_pre_hook(lambda m, args: found.append(type(args[0]) is SHARDED))
        for _ in range(3):
            for module, x in zip(
                layers, (torch.ones(4), torch.ones(6, 4), torch.ones(5).long()), strict=True
            ):
                module(x)
        return found

    assert on_ranks(kinds) == [[True, True, True] + [False, True, True] * 2] * 2


def test_a_count_of_whole_batches_makes_no_reducer(monkeypatch):
    """A loop that is computed whole is counted with sharded ones now and then."""

    def training(run):
        made = []
        monkeypatch.setattr(placement, "AGAIN", 6)
        monkeypatch.setattr(torch_internals, "replica_of", lambda *_: made.append(1))
        chosen(run, 40)
        return made

    assert on_ranks(training, placement="auto") == [[], []]


def test_what_is_not_the_script_s_own_loop_counts_no_steps():
    """A data set's backwards run on one rank, and those of a thread at any moment."""

    class Attacked(Items):
        def __getitem__(self, at):
            x = self.data[at].requires_grad_()
            for _ in range(10):
                (g,) = torch.autograd.grad(x.square().sum(), x)
            return x.detach() + g, at % 3

    def ways(run):
        model, found = mlp(), []
        optimizer = sgd(model)
        for number, (x, y) in enumerate(DataLoader(Attacked(), 7)):
            found.append(type(x) is torch.Tensor)
            if run.world.rank:
                leaf = torch.ones(1, requires_grad=True)
                each = threading.Thread(
                    target=lambda x=leaf: [x.exp().backward() for _ in range(60)]
                )
                each.start()
                each.join()
            F.cross_entropy(model(x), y).backward()
            if number % 5 == 0:
                optimizer.step()
        return found, weights(model)

    (first, want), (second, got) = on_ranks(ways, placement="auto")
    assert first == second == [False] * 6
    assert_same(want, got)


def test_each_loop_has_its_own_choice_and_keeps_it():
    """Two trainings in turn, as in meta-learning: one is small, one has work to share."""

    def in_turn(run):
        loops, found = {8: mlp(), 1000: wide(1000)}, []
        optimizers = {width: sgd(model, 1e-3) for width, model in loops.items()}
        for width in (8, 1000, 8, 1000):
            ways = []
            for x, y in batches(30 * width, width):
                ways.append(type(x) is torch.Tensor)
                optimizers[width].zero_grad()
                F.cross_entropy(loops[width](x), y).backward()
                optimizers[width].step()
            found.append(ways)
        return found, [made.what for made in run.report.of("placement")]

    (found, decisions), other = on_ranks(in_turn, placement="auto")
    assert (found, decisions) == other
    assert found[0] == [False] * COUNTED + [True] * (30 - COUNTED)
    for of_large in found[1], found[3]:
        assert of_large == [True] * OTHERS + [False] * (30 - OTHERS)
    assert found[2] == [False] * OTHERS + [True] * (30 - OTHERS)  # and is not counted again
    assert [what.split(":")[0] for what in decisions] == ["batches are replicated"]


def test_a_batch_that_ranks_would_gather_is_counted():
    """Rows are fetched, as decoding takes long: whole batches would have to be gathered."""

    class Images(Items):
        def __getitem__(self, at):
            return torch.ones(3, 128, 128), at % 3

    def training(run):
        model = nn.Sequential(nn.AvgPool2d(64), nn.Flatten(), nn.Linear(12, 3))
        ways = []
        for x, y in DataLoader(Images(), 8):
            ways.append(type(x) is torch.Tensor)
            F.cross_entropy(model(x), y).backward()
            sgd_of.setdefault(0, sgd(model)).step()
        return ways, [made.what for made in run.report.of("placement")]

    sgd_of = {}
    for ways, (decision,) in on_ranks(training, placement="auto"):
        assert ways == [False] * 5
        assert decision.startswith("batches are sharded")


def test_a_long_step_is_not_computed_whole():
    """Unless many of its functions gather: what is predicted of it may be wrong by a lot.

    One of 500 functions is long with sharded batches alone.
    """
    for functions, gathering, way in (
        (1000, 0, "sharded"),
        (500, 0, "replicated"),
        (200, 400, "replicated"),
    ):

        def training(run, functions=functions, gathering=gathering):
            model, ways = nn.Linear(4, 1), []
            optimizer = sgd(model)
            for x, _ in batches(40, 8):
                ways.append(type(x) is torch.Tensor)
                h = model(x[:, :4])
                for _ in range(functions):
                    h = h + 0.0
                total = h.mean() + sum((h + i).sort(0)[0].mean() for i in range(gathering))
                total.backward()
                optimizer.step()
            return ways, [made.what for made in run.report.of("placement")]

        for ways, (decision,) in on_ranks(training, placement="auto"):
            assert ways[-1] is (way == "replicated")
            assert decision.startswith(f"batches are {way}: a step of ")


def test_another_step_is_counted_after_a_thousand():
    def long(run):
        model, ways = nn.Linear(2, 1), []
        optimizer = sgd(model, 0.01)
        for _ in range(COUNTED + AGAIN + 5):
            ways.append(run.view.replicates)
            optimizer.zero_grad()
            model(torch.ones(4, 2)).mean().backward()
            optimizer.step()
        return ways, [made.what for made in run.report.of("placement")]

    (first, decisions), (second, _) = on_ranks(long, placement="auto")
    assert first == second
    rest = [True] * (AGAIN - 2) + [False] * 2 + [True] * 5
    assert first == [False] * COUNTED + rest
    assert len(decisions) == 1
