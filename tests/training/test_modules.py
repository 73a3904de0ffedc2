import pytest
import torch
import torch.utils.checkpoint
from torch import nn
from torch.nn import functional as F

from autoddp.view import is_sharded
from tests.support.training import (
    TWO_OR_THREE,
    Scripts,
    assert_as_alone,
    batches,
    mlp,
    on_ranks,
    sgd,
    train,
    weights,
)

script = Scripts()


@script
def row_wise():
    model = mlp()
    return train(model, batches()), weights(model)


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


@TWO_OR_THREE
@pytest.mark.parametrize("name", script)
def test_modules_compute_what_one_process_computes(seen, name, nproc):
    assert_as_alone(seen[1][name][0], seen[nproc][name])


@pytest.mark.parametrize("name", script)
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


@pytest.mark.parametrize("transposes", [True, False])
def test_the_batch_dimension_of_a_time_first_network_is_found(transposes):
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(5, 3)

        def forward(self, x):
            return self.rnn(x.transpose(0, 1) if transposes else x)[0]

    def script(run):
        model, x = Tagger(), torch.randn(6, 4, 5)
        outs = [model(x) for _ in range(4)]
        assert all(torch.allclose(out, outs[0]) for out in outs)
        return [is_sharded(out) for out in outs]

    assert on_ranks(script, 2) == [[not transposes, True, True, True]] * 2
