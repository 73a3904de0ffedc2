"""Memory and gradients that a script replaces by other tensors: what is shared stays shared."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from autoddp.errors import BadInput
from autoddp.torch_internals import plain_tensors, storage_uses, swap_implementation, tensor_uses
from autoddp.training.leaves import DATA, GRAD
from autoddp.training.parameters.aliases import REGION, Alias, Region
from autoddp.training.parameters.attributes import answers, grad, move_hooks, slot, whole_tensor
from autoddp.training.parameters.layout import Layout
from autoddp.training.parameters.shard import (
    CLASS,
    HELD,
    Held,
    become,
    held,
    is_shard,
    require,
)
from autoddp.training.parameters.wholes import address

VIEWED = (
    "a sharded parameter has to be replicated here, while the script holds views of it, which "
    "would not follow; drop them before, or run with --parameters replicated"
)


@answers(GRAD.__set__, slot("_grad").__set__)
def set_grad(x: Any, value: Any) -> None:
    """Set the gradient, which is sharded from now on, or let the parameter be replicated.

    It stays the same object, so it is sharded only if nothing else is in its memory.
    """
    mine = held(x)
    if value is None:
        mine.local.grad = mine.grad = None
        return
    if not isinstance(value, Tensor) or not _fits(value, mine):
        with torch.no_grad():
            like = nn.Parameter(mine.local.new_empty(mine.layout.shape))
            GRAD.__set__(like, value)  # raises torch's error
    alike = is_shard(value) and held(value).layout == mine.layout
    if not alike and not _sharded_alike(value, mine):
        _replicate(x, "its gradient is a tensor that shares memory, or has a graph")
        GRAD.__set__(x, value)
        return
    mine.local.grad, mine.grad = held(value).local, value


def _fits(value: Tensor, mine: Held) -> bool:
    local = mine.local
    alike = value.dtype == local.dtype and value.device == local.device
    return alike and value.shape == mine.layout.shape


def _sharded_alike(value: Any, mine: Held) -> bool:
    """Let a tensor be sharded like another one, if nothing else is in its memory."""
    here = held(value).local if is_shard(value) else value
    if (
        type(here) is not Tensor
        or isinstance(value, nn.Parameter)
        or here.requires_grad
        or here.layout is not torch.strided
        or here._is_view()
        or storage_uses(here) > 1
        or tensor_uses(here) > 1
    ):
        return False
    become(value, shard_of(whole_tensor(value), mine.layout, mine))
    return True


def shard_of(whole: Tensor, layout: Layout, mine: Held) -> Held:
    """Return what this rank holds of a whole tensor, in this layout."""
    return mine.like(mine.wholes.agreement.cut(whole.detach(), layout).clone())


def become_plain(parameter: Any, whole: Tensor, alone: bool = False) -> None:
    """Let a sharded tensor, which stays the same object, be a replicated one of this value.

    Its gradient and its hooks stay. So is each tensor in its memory, unless it leaves it `alone`.

    Raises:
        BadInput: There are views of it, which would be of other memory.
    """
    mine = held(parameter)
    users = [] if alone else [x for x in mine.memory.users() if x is not parameter]
    if any(not is_shard(x) or not held(x).local.is_leaf for x in users):
        raise BadInput(VIEWED)
    local = mine.local
    kind: type[Tensor] = Tensor
    leaf = whole.detach().requires_grad_(local.requires_grad)
    if isinstance(parameter, nn.Parameter):
        leaf, kind = nn.Parameter(whole, requires_grad=local.requires_grad), nn.Parameter
    if local.grad is not None:
        leaf.grad = mine.wholes.plain(mine.like(local.grad)).clone()
    for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        if getattr(local, name):
            setattr(leaf, name, getattr(local, name))
    with plain_tensors():
        swap_implementation(parameter, leaf)
        CLASS.__set__(parameter, kind)
    del parameter.__dict__[HELD]
    for x in users:
        become_plain(x, whole, alone=True)


def join_graph(mine: Held, whole: Tensor) -> None:
    """Let a tensor be whole which had no graph until a function wrote one's result into it.

    Raises:
        BadInput: It is a parameter, of which there are views in other memory.
    """
    x: Any = mine.tensor()
    if x is None or not whole.requires_grad or mine.local.requires_grad:
        return
    parameter, memory = isinstance(x, nn.Parameter), whole.detach()
    with plain_tensors():
        swap_implementation(x, whole)
        CLASS.__set__(x, nn.Parameter if parameter else Alias)
    del x.__dict__[HELD]
    users = mine.memory.users()
    for user in users:
        if type(user) is Region and user.whole is whole:
            user.whole = memory  # that object is a shard's now
    if not parameter:
        x.__dict__[REGION] = Region(mine, memory)
        return
    mine.wholes.replicated(x, "a function writes a result with a graph into one")
    for user in users:
        if is_shard(user):
            become_plain(user, memory, alone=True)
        elif type(user) is Region and address(user.whole) != address(memory):
            raise BadInput(VIEWED)


def _replicate(x: Any, why: str, value: Tensor | None = None) -> None:
    """Let a sharded parameter be replicated, in the memory of a value if there is one.

    Raises:
        BadInput: It is no parameter.
    """
    if not isinstance(x, nn.Parameter):
        raise BadInput(
            "a gradient or a state of sharded parameters cannot share memory with a tensor that is "
            "not sharded like it; use copy_ or clone(), or run with --parameters replicated"
        )
    mine = held(x)
    mine.wholes.replicated(x, why)
    if value is None:
        become_plain(x, mine.wholes.plain(mine).clone())
    else:
        become_plain(x, value.detach(), alone=True)


@answers(GRAD.__delete__)
def del_grad(x: Any) -> None:
    """Delete the gradient."""
    set_grad(x, None)


@answers(DATA.__set__)
def set_data(x: Any, value: Any) -> None:
    """Let the parameter be in the memory of another tensor: of its shard, or replicated."""
    if not is_shard(value):
        if type(value) is Alias:
            refuse_view()
        _replicate(x, "its data is a tensor of the script's", value)
        return
    mine = held(x)
    other, leaf, gradient = held(value), mine.local, grad(x)
    alike = other.layout == mine.layout
    unit = mine.unit if alike else None
    if alike:
        mine.local = leaf.detach()  # what a graph has saved stays
        leaf.data = other.local.data
    else:  # the graph's node of the leaf knows its length
        leaf, requires = other.local.data, leaf.requires_grad
        require(leaf, requires)
    new = Held(leaf, other.layout, mine.wholes, other.memory, unit, mine.index)
    new.grad = mine.grad
    if unit is not None:
        unit.replace(mine.index, new)
    become(x, new)
    if gradient is not None and not alike:
        set_grad(x, gradient)


def share_data(x: Any, value: Any) -> None:
    """Let a tensor that is not sharded be in the memory of a sharded one, or of a view of one.

    Raises:
        BadInput: It cannot be.
    """
    if type(x) is Alias:  # of another memory from now on
        CLASS.__set__(x, Tensor)
        del x.__dict__[REGION]
    if type(value) is Alias:
        if type(x) is not Tensor:
            refuse_view()
        region = value.__dict__[REGION]
        region.refresh()
        with plain_tensors():
            DATA.__set__(x, value)
        CLASS.__set__(x, Alias)
        x.__dict__[REGION] = region
    elif is_shard(value):
        _become_sharded(x, held(value))
    else:
        DATA.__set__(x, value)


def _become_sharded(x: Any, other: Held) -> None:
    """Let a plain tensor be a sharded one, in the memory of another."""
    if type(x) not in (Tensor, nn.Parameter) or not x.is_leaf or x._is_view():
        raise BadInput(
            "the data of a tensor that has a graph, or is a view, cannot be that of a sharded "
            "parameter; use copy_, or run with --parameters replicated"
        )
    gradient, local = x.grad, other.local.data
    require(local, x.requires_grad)
    move_hooks(x, local)
    become(x, Held(local, other.layout, other.wholes, other.memory))
    if gradient is not None:
        set_grad(x, gradient)


def refuse_view() -> None:
    """Raise where a parameter would be in the memory of a view of a sharded one.

    Raises:
        BadInput: Always.
    """
    raise BadInput(
        "the data of a parameter cannot be a view of a sharded parameter, which would have to "
        "follow each write; give it view.clone(), or run with --parameters replicated"
    )
