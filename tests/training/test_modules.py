import pytest
import torch
import torch.utils.checkpoint
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from autoddp.view import is_sharded
from tests.support.training import (
    TWO_OR_THREE,
    Runs,
    Scripts,
    assert_as_alone,
    batches,
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


@script
def row_wise():
    model = mlp()
    return train(model, batches()), weights(model)


@script
def whole_batch_in_its_middle():
    model = Normed()
    return train(model, batches()), weights(model)


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
def one_row_for_each_rank():
    model = mlp()
    return (
        train(model, DataLoader(rows(21), 9)),
        train(model, DataLoader(rows(7), 3)),
        weights(model),
    )


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


@pytest.fixture(scope="module")
def seen():
    return Runs(lambda nproc: script.run(nproc))


@TWO_OR_THREE
@pytest.mark.parametrize("name", script)
def test_modules_compute_what_one_process_computes(seen, name, nproc):
    assert_as_alone(seen[1][name][0], seen[nproc][name])


LOCAL = [
    "row_wise",
    "training_and_evaluation",
    "batches_cut_by_hand",
    "checkpoint_inside",
    "reentrant_checkpoint_inside",
]


@pytest.mark.parametrize("name", LOCAL)
def test_what_couples_no_rows_gathers_nothing(seen, name):
    found = seen[2][name][0].decisions
    assert "gather" not in found, found


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
