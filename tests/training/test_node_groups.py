"""Parameters that are sharded within each node: gathers stay there, gradients are those of all."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from autoddp.training.parameters import choice
from autoddp.training.parameters.shard import held, is_shard
from autoddp.training.parameters.shard_group import NodeGroup
from tests.support.training import on_ranks

TWO_BY_TWO = (0, 0, 1, 1)


def trained():
    """What a training gives, and the share of the parameters that this rank holds."""
    blocks = [nn.Sequential(nn.Linear(80, 80), nn.Tanh(), nn.BatchNorm1d(80)) for _ in range(3)]
    net = nn.Sequential(*blocks, nn.Dropout(0.2), nn.Linear(80, 5)).to("cpu")
    average = copy.deepcopy(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(22, 80), torch.randint(5, (22,)))
    seen = []
    for x, y in DataLoader(data, 8, shuffle=True):
        penalty = sum(p.abs().sum() + p.square().mean() for p in net.parameters())
        loss = F.cross_entropy(net(x), y) + 0.01 * penalty
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        largest = nn.utils.get_total_norm([p.grad for p in net.parameters()], float("inf"))
        optimizer.step()
        with torch.no_grad():
            for a, p in zip(average.parameters(), net.parameters(), strict=True):
                a.lerp_(p, 0.1)
        seen += [loss.item(), norm.item(), largest.item(), bool((net[0][0].weight > 9).any())]
    with torch.no_grad():
        nn.init.orthogonal_(net[1][0].weight)
    (curve,) = torch.autograd.grad(net[2][0].weight.sum() ** 2, net[2][0].weight, create_graph=True)
    seen += [curve.sum().item(), torch.autograd.grad(curve.sum(), net[2][0].weight)[0].sum().item()]
    sharded = [p for p in net.parameters() if is_shard(p)]
    part = sum(held(p).local.numel() for p in sharded) / sum(p.numel() for p in net.parameters())
    kinds = {type(held(p).layout.group) for p in sharded}
    state = {k: x.clone().detach().numpy() for k, x in average.state_dict().items()}
    return seen, state, part, kinds


def without_room():
    """No node could hold it."""
    choice.SHARE = choice.SMALL = 0
    return trained()


@pytest.fixture(scope="module")
def alone():
    return on_ranks(trained, 1)[0]


@pytest.mark.parametrize(
    ("train", "nodes", "share"),
    [
        (trained, TWO_BY_TWO, 1 / 2),
        pytest.param(trained, (0, 1, 1, 0, 0, 1), 1 / 3, marks=pytest.mark.slow),
        (without_room, TWO_BY_TWO, 1 / 4),
        pytest.param(trained, (0, 0, 1), 1 / 3, marks=pytest.mark.slow),
    ],
    ids=["by nodes", "ranks in another order", "does not fit a node", "unequal nodes"],
)
def test_nodes_hold_a_whole_each_where_it_fits(train, nodes, share, alone):
    ranks = on_ranks(train, len(nodes), nodes=nodes, parameters="sharded")
    for seen, state, part, kinds in ranks:
        assert seen == pytest.approx(alone[0], rel=1e-9)
        assert part == pytest.approx(share, abs=0.01)
        assert (kinds == {NodeGroup}) == (len(nodes) % 2 == 0 and train is trained)
        for name, x in alone[1].items():
            torch.testing.assert_close(torch.as_tensor(state[name]), torch.as_tensor(x))
