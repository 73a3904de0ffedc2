import copy
import types

import pytest
import torch
import torch.utils.checkpoint
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

from autoddp.view import full, is_sharded
from tests.support.training import (
    TWO_OR_THREE,
    Runs,
    Scripts,
    assert_as_alone,
    batches,
    grads,
    mlp,
    on_ranks,
    rows,
    sgd,
    train,
    weights,
)

script = Scripts()


class Normed(nn.Module):
    """Its first half is row-wise, its second half looks at the whole batch."""

    def __init__(self):
        super().__init__()
        self.body, self.head = mlp(), nn.Linear(3, 3)

    def forward(self, x):
        h = self.body(x)
        return self.head(h - h.mean(0))


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.calls = mlp(), 0

    def forward(self, x):
        self.calls += 1
        return self.body(x)


@script
def row_wise():
    model = mlp()
    return train(model, batches()), weights(model)


@script
def whole_batch_in_its_middle():
    model = Normed()
    return train(model, batches()), weights(model)


@script
def state_left_behind():
    model = Counts()
    return train(model, batches()), weights(model), model.calls


class Steered(nn.Module):
    """Row-wise until something that is no argument says otherwise."""

    def __init__(self):
        super().__init__()
        self.body, self.couple, self.options = mlp(), False, {"couple": False}
        self.drop = nn.Dropout(0.5).eval()

    def forward(self, x):
        h = self.drop(self.body(x))
        couple = self.couple or self.options["couple"] or SWITCH.on or COUPLE
        return h - h.mean(0) if couple else h


SWITCH, COUPLE = types.SimpleNamespace(on=False), False


@script
def steered_from_outside():
    model, found = Steered(), []

    def learn():
        found.append(train(model, batches(11, 5)))

    def turn(space, name):
        for space[name] in (True, False):
            learn()

    learn()
    turn(model.options, "couple")
    turn(vars(SWITCH), "on")
    turn(globals(), "COUPLE")
    model.couple = True
    learn()
    model.couple = False
    learn()
    model.drop.train()
    learn()
    model.body[0] = nn.Sequential(Normed(), nn.Linear(3, 5), copy.deepcopy(model.body[0]))
    learn()
    model.forward = lambda x: model.body(x) - x.mean()
    learn()
    return found, weights(model)


@script
def set_anew_for_every_step():
    model, found = Steered(), []
    for step, (x, y) in enumerate(batches(90, 5)):
        model.step, model.couple = step, step % 7 == 6
        found.append(F.cross_entropy(model(x), y).item())
    return found


@script
def rows_that_are_all_alike():
    model = mlp()
    alike = [(torch.full((6, 5), float(n)), torch.arange(6) % 3) for n in range(9)]
    return train(model, [*alike, *batches(12, 6)]), weights(model)


@script
def too_few_rows():
    model = mlp()
    return train(model, DataLoader(rows(5), 1)), weights(model)


@script
def hooks_come_and_go():
    model, seen = mlp(), []
    loader = batches(22, 5)
    found = train(model, loader)
    handle = model[1].register_forward_hook(
        lambda m, a, out: seen.append((tuple(out.shape), out.sum().item()))
    )
    found += train(model, loader)
    handle.remove()
    found += train(model, loader)
    again = model.register_forward_pre_hook(lambda m, a: seen.append(a[0].mean().item()))
    found += train(model, loader)
    again.remove()
    back = model[0].register_full_backward_hook(
        lambda m, g, out: seen.append(out[0].abs().sum().item())
    )
    found += train(model, loader)
    back.remove()
    return found, seen, weights(model)


@script
def a_hook_that_changes_the_output():
    model = mlp()
    model[1].register_forward_hook(lambda m, a, out: out - out.mean(0))
    return train(model, batches()), weights(model)


@script
def one_row_for_each_rank():
    model = mlp()
    return (
        train(model, DataLoader(rows(21), 9)),
        train(model, DataLoader(rows(7), 3)),
        weights(model),
    )


@script
def a_copy_of_a_model():
    model = mlp()
    losses = train(model, batches())
    other = copy.deepcopy(model)
    other[1] = nn.BatchNorm1d(7)
    return losses, train(other, batches()), weights(model, other)


@script
def two_models():
    left, right = mlp(), mlp(3, 3)
    optimizer = sgd(nn.ModuleList([left, right]))
    for x, y in batches():
        optimizer.zero_grad()
        (F.cross_entropy(right(left(x)), y) + F.cross_entropy(left(x), y)).backward()
        optimizer.step()
    return weights(left, right)


@script
def training_and_evaluation():
    model = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.Linear(8, 3))
    losses, hits = [], []
    for _ in range(2):
        model.train()
        losses += train(model, batches())
        model.eval()
        with torch.no_grad():
            hits.append(sum((model(x).argmax(1) == y).sum().item() for x, y in batches(11, 4)))
    return losses, hits, weights(model), torch.rand(())


class Encoded(Dataset):
    def __init__(self, encoder):
        self.encoder, self.x = encoder, torch.randn(11, 5)

    def __len__(self):
        return 11

    def __getitem__(self, n):
        with torch.no_grad():
            return self.encoder(self.x[n : n + 4])[0], n % 3


@script
def a_model_in_a_data_set():
    encoder, model = mlp(5, 4), mlp(4)
    return train(model, DataLoader(Encoded(encoder), 4)), weights(model, encoder)


@script
def folds_with_new_models():
    losses = []
    for fold in range(5):
        model = mlp() if fold % 2 else Normed()  # a new one may lie where an old one lay
        losses += train(model, batches(12, 5))
        del model
    return losses


@script
def batches_cut_by_hand():
    x, y, model, losses = torch.randn(22, 5), torch.randint(3, (22,)), mlp(), []
    optimizer = sgd(model)
    for start in range(0, 22, 8):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[start : start + 8]), y[start : start + 8])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, weights(model)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.LSTM(4, 6, 2), nn.Linear(6, 3)

    def forward(self, x, state=None):
        out, state = self.cell(x, state)
        return self.head(out), state


@script
def time_first_with_a_state():
    model, state, losses = Recurrent(), None, []
    optimizer = sgd(model)
    for _ in range(3):
        x, y = torch.randn(5, 7, 4), torch.randint(3, (5, 7))
        optimizer.zero_grad()
        out, state = model(x, state)
        state = tuple(s.detach() for s in state)
        loss = F.cross_entropy(out.flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()
        losses.append((loss.item(), tuple(state[0].shape)))
    return losses, weights(model), state[1].sum().item()


@script
def square_inputs():
    model = nn.Linear(6, 6)
    x = torch.randn(6, 6)
    (model(x) ** 2).mean().backward()
    return model(x), model(x.t()), grads(model)


class Masks(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = mlp()

    def forward(self, x):
        x[:, 0] = 0
        return self.body(x)


@script
def writes_into_its_input():
    model, x = Masks(), torch.randn(7, 5)
    first = model(x).sum().item()
    seen = [x.clone()]
    for batch, _ in batches(9, 5):
        model(batch)
        seen.append(batch.clone())
    return first, seen


@script
def without_gradients_inside():
    teacher, model, losses = mlp(), mlp(), []
    optimizer = sgd(model)
    for x, _ in batches():
        optimizer.zero_grad()
        with torch.no_grad():
            target = teacher(x)
            with torch.enable_grad():
                loss = F.mse_loss(model(x), target)
        loss.backward()
        optimizer.step()
        with torch.inference_mode():
            losses.append(model(x).mean().item())
    return losses, weights(model, teacher)


@script
def data_parallel():
    model = nn.DataParallel(mlp())
    return train(model, batches()), weights(model), list(model.state_dict())


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(5, 3)

    def forward(self, x):
        if x.size(0) > 6:
            return self.body(x) * 2
        return self.body(x)


@script
def scripted_and_traced():
    scripted, traced = torch.jit.script(Branches()), torch.jit.trace(mlp(), torch.randn(4, 5))
    return train(scripted, batches(22, 5)), train(traced, batches(22, 5)), weights(scripted, traced)


@script
def traced_after_training():
    model = mlp()
    losses = train(model, batches())
    model.eval()
    example = next(iter(batches()))[0]
    return losses, torch.jit.trace(model, torch.ones(3, 5))(example)


def checkpointed(reentrant):
    class Inside(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.body, self.head = nn.Linear(5, 6), mlp(6, 6), nn.Linear(6, 3)
            self.drop = nn.Dropout(0.5)

        def forward(self, x):
            h = self.drop(self.first(x))
            h = torch.utils.checkpoint.checkpoint(self.body, h, use_reentrant=reentrant)
            return self.head(self.drop(h))

    model = Inside()
    return train(model, batches()), weights(model), torch.rand(())


@script
def checkpoint_inside():
    return checkpointed(False)


@script
def reentrant_checkpoint_inside():
    return checkpointed(True)


@script
def checkpoint_by_the_script():
    body, head = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Dropout(0.5)), nn.Linear(6, 3)
    optimizer = sgd(nn.ModuleList([body, head]))
    for x, y in batches():
        optimizer.zero_grad()
        h = torch.utils.checkpoint.checkpoint(body, x, use_reentrant=False)
        h = torch.utils.checkpoint.checkpoint(lambda h: h - h.mean(0), h, use_reentrant=False)
        F.cross_entropy(head(h), y).backward()
        optimizer.step()
    return weights(body, head), torch.rand(())


class Centred(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        return (x - x.mean(0)) * scale

    @staticmethod
    def backward(ctx, g):
        return (g - g.mean(0)) * ctx.scale, None


@script
def a_function_of_ones_own():
    model, losses = mlp(), []
    optimizer = sgd(model)
    for x, y in batches():
        optimizer.zero_grad()
        loss = F.cross_entropy(Centred.apply(model(Centred.apply(x, 2.0)), 3.0), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, weights(model)


@script
def transforms():
    model, found = mlp(), []
    named = dict(model.named_parameters())

    def loss(weights, x, y):
        return F.cross_entropy(torch.func.functional_call(model, weights, (x,)), y)

    for x, y in batches():
        per_row = torch.vmap(torch.func.grad(loss), (None, 0, 0))(named, x[:, None], y[:, None])
        found += [g.pow(2).sum() for g in per_row.values()]
        found += list(torch.func.grad(loss)(named, x, y).values())
        found += [torch.vmap(lambda r: r * r.sum())(x), loss(named, x, y)]
        found += [torch.func.jacrev(lambda v: (v**2).sum(1))(x[:3])]
        found += [torch.func.jvp(torch.sin, (x,), (torch.ones(x.shape),))[1]]
    F.cross_entropy(torch.func.functional_call(model, named, (x,)), y).backward()
    return found, grads(model)


@script
def outputs_of_many_kinds():
    class Many(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = mlp()

        def forward(self, x, scale=1.0, name="logits"):
            out = self.body(x) * scale
            return {name: out, "pair": (out.argmax(1), x), "none": None, "scale": scale}

    model, found = Many(), []
    for x, y in batches():
        out = model(x, scale=2.0, name="out")
        F.cross_entropy(out["out"], y).backward()
        found.append(
            (out["pair"][0].tolist(), out["pair"][1].sum().item(), out["none"], out["scale"])
        )
        found.append(sorted(model(x)))
    return found, grads(model)


compiled = Scripts()


@compiled
def a_compiled_module_and_function():
    model, plain = mlp(), mlp()
    fast = torch.compile(model, backend="aot_eager")

    @torch.compile(backend="aot_eager")
    def loss(out, y):
        return F.cross_entropy(out - out.mean(0), y)

    return (
        train(fast, batches(12, 6, False)),
        train(plain, batches(12, 6), loss=loss),
        weights(model, plain),
    )


@pytest.fixture(scope="module")
def seen():
    return Runs(lambda nproc: script.run(nproc))


@TWO_OR_THREE
@pytest.mark.parametrize("name", script)
def test_modules_compute_what_one_process_computes(seen, name, nproc):
    assert_as_alone(seen[1][name][0], seen[nproc][name])


def test_compiled_as_in_one_process():
    name = "a_compiled_module_and_function"
    assert_as_alone(compiled.run(1)[name][0], compiled.run(2)[name])


LOCAL = [
    "row_wise",
    "state_left_behind",
    "time_first_with_a_state",
    "training_and_evaluation",
    "batches_cut_by_hand",
    "data_parallel",
    "checkpoint_inside",
    "reentrant_checkpoint_inside",
]


@pytest.mark.parametrize("name", LOCAL)
def test_what_couples_no_rows_gathers_nothing(seen, name):
    found = seen[2][name][0].decisions
    assert "gather" not in found, found


def test_a_coupling_that_comes_later_from_out_of_sight():
    def script(run):
        secret = [0]

        class Hidden(nn.Linear):
            def forward(self, x):
                h = super().forward(x)
                return h - h.mean(0) if secret[0] else h

        model, x, outs = Hidden(5, 3), torch.randn(7, 5), []
        for call in range(4):
            secret[0] = int(call > 1)
            right = nn.functional.linear(x, model.weight, model.bias)
            right = right - right.mean(0) if secret[0] else right
            outs.append(torch.allclose(full(model(x)), right))
        return outs

    assert on_ranks(script, 2) == [[True] * 4] * 2


def test_a_forward_sees_the_whole_batch_of_which_a_rank_holds_its_rows():
    def script(run):
        seen = []

        class Looks(nn.Linear):
            def forward(self, x):
                seen.append((is_sharded(x), len(x), len(x.local)))
                return super().forward(x)

        model = Looks(5, 3)
        outs = [model(x) for x, _ in batches(7, 5)]
        return seen, [is_sharded(out) for out in outs]

    assert on_ranks(script, 2) == [
        ([(True, 5, 3), (True, 2, 1)], [True, True]),
        ([(True, 5, 2), (True, 2, 1)], [True, True]),
    ]


def test_a_hook_sees_the_whole_batch():
    def script(run):
        model, seen = mlp(), []
        train(model, batches(5, 5))
        handle = model[0].register_forward_hook(lambda m, a, out: seen.append(tuple(out.shape)))
        model(torch.randn(5, 5))
        handle.remove()
        model(torch.randn(5, 5))
        return seen

    assert on_ranks(script, 2) == [[(5, 7)]] * 2


def test_a_module_without_parameters_is_plain():
    def script(run):
        loss = nn.CrossEntropyLoss()
        for x, y in DataLoader(TensorDataset(torch.randn(5, 3), torch.arange(5) % 3), 5):
            value = loss(x, y)
        return value.item()

    alone = on_ranks(script, 1)[0]
    for found in on_ranks(script, 2):
        assert found == pytest.approx(alone, rel=1e-12)
