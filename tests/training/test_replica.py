import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from autoddp.errors import Disagreement
from autoddp.training.leaves import leaves_of
from autoddp.training.replica import KEPT, Replicas
from autoddp.view.order import Order
from tests.support.ranks import run_ranks


def shapes(leaves):
    return [tuple(leaf.shape) for leaf in leaves]


def test_leaves_of_a_graph_by_their_kind():
    table, head = nn.Embedding(5, 2, sparse=True), nn.Linear(2, 3)
    turn = torch.randn(3, dtype=torch.complex64, requires_grad=True)
    frozen, raw = nn.Linear(3, 3).requires_grad_(False), torch.randn(3, requires_grad=True)
    out = frozen(head(table(torch.tensor([1, 2])))) * raw
    found = leaves_of([out.sum(), (out * turn).abs().sum()], Order())
    assert sorted(shapes(found.dense)) == [(3,), (3,), (3, 2)]
    assert sorted(shapes(found.others)) == [(3,), (5, 2)]
    assert len(found.all) == 5
    assert not found.recomputes


def test_a_root_may_be_a_leaf():
    leaf = torch.ones(2, requires_grad=True)
    assert leaves_of([leaf], Order()).all == [leaf]


def test_reentrant_checkpoints_are_seen():
    body, x = nn.Linear(2, 2), torch.ones(1, 2, requires_grad=True)
    from torch.utils.checkpoint import checkpoint

    out = checkpoint(body, x, use_reentrant=True)
    found = leaves_of([out.sum()], Order())
    assert found.recomputes
    assert shapes(found.all) == [(1, 2)]  # the body hides


def test_the_order_is_that_of_the_modules():
    model, order = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4)), Order()
    order.note(model.parameters())
    raw = torch.ones(4, requires_grad=True)
    found = leaves_of([(raw * model(torch.ones(1, 2))).sum()], order)
    assert found.dense[:-1] == list(model.parameters())
    assert found.dense[-1] is raw


def test_numbers_of_parameters_that_are_gone_are_not_passed_on():
    order = Order()
    order.note([torch.ones(1) for _ in range(50)])  # gone at once: new ones may lie there
    new = [torch.ones(1) for _ in range(50)]
    assert all(a is b for a, b in zip(order.sorted(reversed(new)), reversed(new), strict=True))


def backward(group, replicas, model, scale=None):
    """Each rank's own gradient, averaged."""
    loss = model(torch.full((1, 2), 1.0 + group.rank)).sum()
    found = leaves_of([loss], Order())
    replicas.arm(found, [loss])
    for top in [loss]:
        top.backward()
    return found


def test_one_reducer_for_each_set_the_last_few_kept():
    def rank(group):
        replicas, models, made = (
            Replicas(group),
            [nn.Linear(2, 1, bias=False) for _ in range(6)],
            [],
        )
        with torch.no_grad():
            for model in models:
                model.weight.fill_(0.5)
        for model in models + models[-2:] + models[:1]:
            before = {id(r) for r, *_ in replicas._kept.values()}
            backward(group, replicas, model)
            made.append(len({id(r) for r, *_ in replicas._kept.values()} - before))
        kinds = {type(r) for r, *_ in replicas._kept.values()}
        return (
            made,
            len(replicas._kept),
            kinds == {DistributedDataParallel},
            models[1].weight.grad.tolist(),
        )

    for made, kept, kinds, grad in run_ranks(rank, 2):
        assert made == [1, 1, 1, 1, 1, 1, 0, 0, 1]
        assert kept == KEPT
        assert kinds
        assert grad == [[1.5, 1.5]]


def test_a_parameter_that_moved_away_and_back_is_averaged_still():
    def rank(group):
        replicas, model, found = Replicas(group), nn.Linear(2, 1, bias=False), []
        with torch.no_grad():
            model.weight.fill_(0.5)
        for _ in range(3):
            backward(group, replicas, model)
            found.append(model.weight.grad.tolist())
            model.zero_grad()
            model.double().float()
        return found

    assert run_ranks(rank, 2) == [[[[1.5, 1.5]]] * 3] * 2


def test_a_dropped_reducer_is_made_anew():
    def rank(group):
        replicas, model = Replicas(group), nn.Linear(2, 1, bias=False)
        with torch.no_grad():
            model.weight.fill_(0.5)
        hidden = model(torch.ones(1, 2))
        hidden.register_hook(lambda g: 1 / 0)
        loss = hidden.sum()
        found = leaves_of([loss], Order())
        replicas.arm(found, [loss])
        with pytest.raises(ZeroDivisionError):
            loss.backward()
        replicas.drop(found)
        model.zero_grad()
        backward(group, replicas, model)
        return model.weight.grad.tolist()

    assert run_ranks(rank, 2) == [[[1.5, 1.5]]] * 2


def test_parameters_that_differ_are_named_by_number_and_shape():
    def rank(group):
        leaves = [torch.zeros(2), torch.full((3, 4), float(group.rank))]
        with pytest.raises(Disagreement) as raised:
            Replicas(group).compare(leaves)
        return str(raised.value)

    for said in run_ranks(rank, 2):
        assert said.startswith("parameter 1 of 2, of shape (3, 4), is not the same on all ranks")


# torch 2.11, whatever one says of them
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_what_no_reducer_covers_is_averaged_at_once():
    def rank(group):
        leaves = [
            torch.zeros(2),
            torch.zeros(3, dtype=torch.float64),
            torch.zeros(4, 2),
            torch.zeros(1),
        ]
        leaves += [torch.zeros(2, dtype=torch.complex64)]
        leaves[0].grad = torch.full((2,), float(group.rank))
        leaves[1].grad = torch.full((3,), 2.0 * group.rank, dtype=torch.float64)
        index = torch.tensor([[0, 2]]) if group.rank else torch.tensor([[2]])
        values = torch.full((index.shape[1], 2), 1.0 + group.rank)
        leaves[2].grad = torch.sparse_coo_tensor(index, values, (4, 2), check_invariants=False)
        leaves[4].grad = torch.full((2,), 2j * group.rank)
        replicas = Replicas(group)
        replicas.average(leaves)
        replicas.average(leaves)  # a mean of means of equals
        return [x.grad if x.grad is None else x.grad.to_dense().tolist() for x in leaves]

    for found in run_ranks(rank, 2):
        assert found == [
            [0.5, 0.5],
            [1.0, 1.0, 1.0],
            [[1.0, 1.0], [0.0, 0.0], [1.5, 1.5], [0.0, 0.0]],
            None,
            [1j, 1j],
        ]
