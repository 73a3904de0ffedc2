"""What a sharded parameter answers about itself, its gradient and its place in the graph."""

from __future__ import annotations

from collections.abc import Callable
from types import GetSetDescriptorType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from autoddp.torch_internals import TensorBase, plain_tensors, typed_storage
from autoddp.training.parameters.shard import (
    Held,
    become,
    become_plain,
    held,
    is_shard,
    require,
    state_of,
)

# what the wrapper itself answers, which has the shape, the dtype and the device of the whole
NAMES = (
    *("size", "dim", "numel", "nelement", "ndimension", "stride", "is_floating_point"),
    *("is_complex", "is_signed", "element_size", "get_device", "is_contiguous", "storage_offset"),
    *("__len__", "__hash__", "is_inference", "is_conj", "is_neg", "dim_order", "has_names"),
    *("is_pinned", "is_shared", "_is_view", "_is_zerotensor", "is_same_size"),
)
METADATA: set[Any] = {getattr(Tensor, name) for name in NAMES if hasattr(Tensor, name)}
METADATA |= {torch.numel, torch.is_floating_point, torch.is_complex, torch.is_conj, torch.is_neg}
GATHERED = ("T", "mT", "H", "mH", "real", "imag", "data")
_SLOTS = {
    name: slot
    for owner in (TensorBase, Tensor)
    for name, slot in vars(owner).items()
    if isinstance(slot, (GetSetDescriptorType, property)) and not name.startswith("__")
}
METADATA |= {getattr(Tensor, name).__get__ for name in _SLOTS if name not in GATHERED}

Answer = TypeVar("Answer", bound=Callable[..., Any])
ANSWERS: dict[Any, Callable[..., Any]] = {}


def answers(*functions: Any) -> Callable[[Answer], Answer]:
    """Register the decorated function as the answer to these."""

    def record(answer: Answer) -> Answer:
        ANSWERS.update(dict.fromkeys(functions, answer))
        return answer

    return record


def slot(name: str) -> Any:
    """Return torch's descriptor of an attribute."""
    found: Any = getattr(Tensor, name)
    return found


def _of_local(name: str) -> None:
    """Read and write an attribute at the shard: it is a leaf where the parameter is one."""
    descriptor = slot(name)
    METADATA.discard(descriptor.__get__)
    ANSWERS[descriptor.__get__] = lambda x: descriptor.__get__(held(x).local)
    ANSWERS[descriptor.__set__] = lambda x, value: descriptor.__set__(held(x).local, value)


for _name in ("requires_grad", "is_leaf", "grad_fn", "_version", "retains_grad", "output_nr"):
    _of_local(_name)
for _name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
    if hasattr(Tensor, _name):
        _of_local(_name)


@answers(slot("grad").__get__, slot("_grad").__get__)
def grad(x: Any) -> Any:
    """Return the gradient, sharded like the parameter."""
    mine = held(x)
    found = mine.local.grad
    if found is None:
        mine.grad = None
    elif mine.grad is None or held(mine.grad).local is not found:
        mine.grad = state_of(mine.like(found))
    return mine.grad


@answers(slot("grad").__set__, slot("_grad").__set__)
def set_grad(x: Any, value: Any) -> None:
    """Set the gradient: a sharded one of this layout, or the shard of a whole one."""
    mine = held(x)
    if value is None:
        mine.local.grad = mine.grad = None
        return
    if not isinstance(value, Tensor) or value.shape != mine.layout.shape:
        with torch.no_grad():
            nn.Parameter(mine.local.new_empty(mine.layout.shape)).grad = value  # torch's error
        return
    if is_shard(value) and held(value).layout == mine.layout:
        mine.local.grad, mine.grad = held(value).local, value
        return
    whole = whole_tensor(value)
    mine.local.grad = mine.layout.shard(whole, mine.wholes.group.rank).detach().clone()


@answers(slot("grad").__delete__)
def del_grad(x: Any) -> None:
    """Delete the gradient."""
    set_grad(x, None)


@answers(slot("data").__get__)
def data(x: Any) -> Any:
    """Return the parameter without its graph, in the same memory."""
    return state_of(held(x).alias(held(x).local.data))


@answers(Tensor.detach, torch.detach)
def detach(x: Any) -> Any:
    """Return the parameter without its graph, in the same memory and with the same versions."""
    return state_of(held(x).alias(held(x).local.detach()))


@answers(Tensor.detach_)
def detach_(x: Any) -> Any:
    """Detach the shard from its graph."""
    held(x).local.detach_()
    return x


@answers(slot("data").__set__)
def set_data(x: Any, value: Any) -> None:
    """Let the parameter be in the memory of another tensor: of its shard, or replicated."""
    mine = held(x)
    if not is_shard(value):
        if not isinstance(x, nn.Parameter):
            raise RuntimeError("the data of a function of sharded parameters cannot be replaced")
        mine.wholes.replicated(x)
        become_plain(x, value.detach())
        return
    other = held(value)
    local = other.local.data
    require(local, mine.local.requires_grad)
    unit = mine.unit if other.layout == mine.layout else None
    new = Held(local, other.layout, mine.wholes, other.memory, unit, mine.index)
    same = (mine.local.dtype, mine.local.device) == (local.dtype, local.device)
    if unit is not None:
        unit.replace(mine.index, new)
    if mine.local.grad is not None and same and unit is not None:
        local.grad, new.grad = mine.local.grad, mine.grad
    become(x, new)


@answers(Tensor.requires_grad_)
def requires_grad_(x: Any, requires_grad: bool = True) -> Any:
    """Set whether the parameter needs a gradient."""
    require(held(x).local, requires_grad)
    return x


@answers(slot("requires_grad").__set__)
def set_requires_grad(x: Any, requires_grad: bool) -> None:
    """Set whether the parameter needs a gradient."""
    require(held(x).local, requires_grad)


@answers(Tensor.retain_grad)
def retain_grad(x: Any) -> None:
    """Keep the gradient of a function of parameters."""
    held(x).local.retain_grad()


@answers(Tensor.register_hook)
def register_hook(x: Any, hook: Any) -> Any:
    """Register a hook that gets the true gradient, sharded like the parameter."""
    mine = held(x)

    def call(gradient: Tensor) -> Any:
        new = hook(state_of(mine.like(gradient)))
        if new is None or (is_shard(new) and held(new).layout == mine.layout):
            return None if new is None else held(new).local
        return mine.layout.shard(whole_tensor(new), mine.wholes.group.rank)

    return mine.local.register_hook(call)


@answers(Tensor.register_post_accumulate_grad_hook)
def register_post_accumulate_grad_hook(x: Any, hook: Any) -> Any:
    """Register a hook that gets the parameter, once its gradient is there."""
    return held(x).local.register_post_accumulate_grad_hook(lambda _: hook(x))


@answers(Tensor.untyped_storage, typed_storage, Tensor.storage)
def storage(x: Any) -> Any:
    """Return the shard's storage: what asks for it compares whether tensors share memory."""
    with plain_tensors():
        return held(x).local.untyped_storage()


@answers(Tensor.data_ptr)
def data_ptr(x: Any) -> int:
    """Return the address of the whole, which is kept from then on: a kernel may read it."""
    mine = held(x)
    mine.pinned = mine.wholes.plain(mine)
    return mine.pinned.data_ptr()


def whole_tensor(x: Any) -> Tensor:
    """Return the whole of a tensor that a script gives, outside of any graph."""
    return held(x).wholes.plain(held(x)) if is_shard(x) else x.detach()
