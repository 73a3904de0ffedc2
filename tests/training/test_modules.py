import collections
import dataclasses
import re
import sys
import types
from collections.abc import MutableMapping

import numpy as np
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
    grads,
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


Pair = collections.namedtuple("Pair", "x more")


@dataclasses.dataclass
class Example:
    x: torch.Tensor
    more: list


class Tensors(MutableMapping):
    """A mapping like tensordict's TensorDict, which is not installed here."""

    is_locked = False

    def __init__(self, **tensors):
        self.tensors = tensors

    def __copy__(self):
        return Tensors(**self.tensors)

    def __getitem__(self, key):
        return self.tensors[key]

    def __setitem__(self, key, value):
        self.tensors[key] = value

    def __delitem__(self, key):
        del self.tensors[key]

    def __iter__(self):
        return iter(self.tensors)

    def __len__(self):
        return len(self.tensors)


class OfContainers(nn.Module):
    """Reads what it gets, and writes into it, as sentence-transformers' modules do."""

    def __init__(self):
        super().__init__()
        self.net, self.seen = mlp(), []

    def forward(self, batch, *others):
        self.seen.append(type(batch))
        if isinstance(batch, list):
            return sum(self.forward(item) for item in batch)
        if isinstance(batch, (tuple, Example)):
            return self.net(batch.x) + self.net(batch.more[0])
        batch["out"] = self.net(batch["x"])
        batch["x"], batch["again"] = batch["x"] * 2, batch["y"]
        batch.pop("left", None)
        return batch["out"] + others[0]["x"] if others else batch["out"]


@script
def batches_in_containers():
    model, x = OfContainers(), torch.randn(22, 5)
    sys.modules["tensordict"] = types.SimpleNamespace(TensorDict=Tensors)
    optimizer, found = sgd(model), []
    made = (
        lambda x: {"x": x, "y": x, "left": 1},
        lambda x: collections.UserDict(x=x, y=x),
        lambda x: Tensors(x=x, y=x),
        lambda x: [collections.OrderedDict(x=x, y=x), {"x": x + 1, "y": x}],
        lambda x: Pair(x, [x + 1]),
        lambda x: Example(x, [x + 1, {}]),
    )
    for make in made:
        for start in range(0, 22, 8):
            batch = make(x[start : start + 8])
            held = [type(batch), batch] if isinstance(batch, Example) else []
            optimizer.zero_grad()
            loss = model(batch).pow(2).mean()
            loss.backward()
            optimizer.step()
            first = batch[0] if isinstance(batch, list) else batch
            if not isinstance(first, (Pair, Example)):
                held += [*first, first["x"], first["again"] is first["y"], type(first)]
                assert type(first["y"]) is torch.Tensor
            elif held:
                assert type(batch.x) is torch.Tensor
                held = [held[1] is batch, len(batch.more)]
            found.append((loss.item(), [str(h) if isinstance(h, type) else h for h in held]))
    del sys.modules["tensordict"]
    return found, weights(model), [kind.__name__ for kind in model.seen]


@script
def labels_shifted_and_masked():
    class Shifts(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.out = nn.Embedding(9, 6), nn.Linear(6, 9)

        def forward(self, labels):
            given = labels.new_zeros(labels.shape)
            given[..., 1:] = labels[..., :-1].clone()
            given[..., 0] = 8
            given[given == 3] = 0
            return self.out(self.embed(given))

    model, labels, losses = Shifts(), torch.randint(8, (22, 7)), []
    optimizer = sgd(model)
    for y in labels.split(8):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(y).flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, weights(model)


def by_arrays(model, arrays):
    """Losses of a model that makes tensors of the arrays that it gets."""
    optimizer, losses = sgd(model), []
    for array in arrays:
        optimizer.zero_grad()
        loss = model(array).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, weights(model), [array.tolist() for array in arrays]


@script
def batches_as_arrays():
    class Makes(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.net = nn.Embedding(9, 5), mlp()

        def forward(self, items):
            found = torch.LongTensor(items), torch.tensor(items), torch.as_tensor(items.tolist())
            return self.net(sum(map(self.embed, found)).mean(1))

    draw = np.random.RandomState(0)
    return by_arrays(Makes(), [draw.randint(0, 9, (n, 7)) for n in (8, 8, 6)])


@script
def arrays_that_the_forward_writes_into():
    class Writes(nn.Linear):
        def forward(self, x):
            x *= 2
            x[:, 0] = 1
            return super().forward(x)

    class Shares(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Writes(5, 5), mlp()

        def forward(self, array):
            x = torch.from_numpy(array)
            x += 0.25
            array[:, 1] = 0.5
            h = self.first(x)
            h = h * float(array.mean()) + self.second(x).sum(1, keepdim=True)
            with torch.no_grad():
                array[:, 2] = 3
                h += self.second(x)[:, :1]
            return h.sin()

    return by_arrays(Shares(), [np.random.RandomState(n).rand(n, 5) for n in (8, 8, 6)])


@script
def checkpoints_of_plain_tensors():
    class Inside(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = mlp(5, 5), nn.Linear(5, 3)

        def forward(self, array):
            x = torch.from_numpy(array)
            h = torch.utils.checkpoint.checkpoint(self.body, x, use_reentrant=False)
            return self.head(h)

    model, x = mlp(), torch.randn(8, 5)
    torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False).pow(2).mean().backward()
    return by_arrays(Inside(), [np.random.RandomState(0).rand(8, 5)]), grads(model)


@TWO_OR_THREE
@pytest.mark.parametrize("name", script)
def test_modules_compute_what_one_process_computes(seen, name, nproc):
    assert_as_alone(seen[1][name][0], seen[nproc][name])


@pytest.mark.parametrize("name", script)
def test_what_couples_no_rows_gathers_nothing(seen, name):
    found = seen[2][name][0].decisions
    assert "gather" not in found, found


@pytest.mark.parametrize(
    "name",
    [
        *("batches_cut_by_hand", "batches_in_containers", "batches_as_arrays"),
        "arrays_that_the_forward_writes_into",
    ],
)
def test_where_a_batch_is_sharded_that_no_loader_made_is_said_once(seen, name):
    (said,) = seen[2][name][0].decisions["modules"]
    assert re.search(r"\w+ at test_modules.py:\d+: each rank computes its rows of the batch$", said)


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


def test_a_forward_sees_rows_in_a_tensordict_unless_it_is_locked():
    class Writes(nn.Linear):
        def forward(self, batch):
            batch["out"] = super().forward(batch["x"])
            return batch

    def script(run):
        model, seen = Writes(5, 3), []
        for batch in (Tensors(x=torch.randn(6, 5)), Tensors(x=torch.randn(6, 5))):
            batch.is_locked = bool(seen)
            out = model(batch)
            seen.append((out is batch, is_sharded(out["out"]), is_sharded(out["x"])))
        return seen

    sys.modules["tensordict"] = types.SimpleNamespace(TensorDict=Tensors)
    try:
        assert on_ranks(script, 2) == [[(True, True, False), (True, False, False)]] * 2
    finally:
        del sys.modules["tensordict"]


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
