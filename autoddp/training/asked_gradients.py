"""`torch.autograd.grad` of sharded and replicated tensors, with true gradients on every rank."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from autoddp.training.parameters.shard import held, is_shard, state_of
from autoddp.view import ShardedTensor
from autoddp.view.redistribute import mean_over_ranks
from autoddp.view.rules.autograd import listed, roots
from autoddp.view.rules.partial import unread
from autoddp.view.sharded_tensor import full, is_sharded
from autoddp.view.state import View


def as_held(x: Any) -> Any:
    """Return the local tensor of an input of `torch.autograd.grad`."""
    if is_shard(x):
        return held(x).local
    return x.local if is_sharded(x) or unread(x) else full(x)


def gradients_of(
    view: View, plain: Any, outputs: Any, inputs: Any, grad_outputs: Any, given: dict[str, Any]
) -> Any:
    """Compute `torch.autograd.grad` in the view; for a dict of inputs it returns one.

    The gradients of sharded tensors are sharded; all others are averaged over ranks, in the order
    of the parameters: a set of the script has another order in each process.
    """
    if type(inputs) is dict:
        found = gradients_of(view, plain, outputs, [*inputs.values()], grad_outputs, given)
        return dict(zip(inputs, found, strict=True))
    outs, ins, given_seeds = listed(outputs), listed(inputs), listed(grad_outputs)
    if given.pop("is_grads_batched", False) and any(seed is not None for seed in given_seeds):
        return _one_by_one(view, plain, outs, ins, given_seeds, given)
    tops, seeds = roots(outs, given_seeds)
    seeds_given = None if all(seed is None for seed in seeds) else seeds
    got = plain(tops, [as_held(x) for x in ins], seeds_given, **given)
    true = {k: _true(got[k], ins[k], view.group) for k in view.order.positions(ins)}
    return tuple(true[k] for k in range(len(ins)))


def _one_by_one(
    view: View, plain: Any, outs: Any, ins: Any, seeds: list[Any], given: dict[str, Any]
) -> tuple[Any, ...]:
    """Compute batched gradients, which torch computes under `vmap`, where there are no rows."""
    found, count = [], min(len(seed) for seed in seeds if seed is not None)
    for k in range(count):
        some = [None if seed is None else seed[k] for seed in seeds]
        kept = given if k == count - 1 else {**given, "retain_graph": True}
        found.append(gradients_of(view, plain, outs, ins, some, kept))
    columns = zip(*found, strict=True)
    return tuple(None if each[0] is None else torch.stack(each) for each in columns)


def _true(g: Tensor | None, x: Any, group: Any) -> Any:
    if g is None:
        return g
    if is_shard(x):  # its mean was taken where it was reduced
        return state_of(held(x).like(g))
    if is_sharded(x):  # a leaf has it at the true scale already: see requires_grad_
        return ShardedTensor(g if x.local.is_leaf else g / group.size, x.sizes, x.shard_dim)
    return mean_over_ranks(g, group)
