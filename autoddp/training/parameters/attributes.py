"""What a sharded parameter answers about itself, its gradient and its place in the graph."""

from __future__ import annotations

from collections.abc import Callable
from types import GetSetDescriptorType
from typing import Any, TypeVar

import torch
from torch import Tensor

from autoddp.own_hooks import own_hooks
from autoddp.torch_internals import TensorBase
from autoddp.training.parameters.aliases import MEMORY
from autoddp.training.parameters.shard import Held, held, is_shard, require, state_of
from autoddp.view.redistribute import mean_over_ranks

# what the wrapper itself answers, which has the shape, the dtype and the device of the whole
NAMES = (
    *("size", "dim", "numel", "nelement", "ndimension", "stride", "is_floating_point"),
    *("is_complex", "is_signed", "element_size", "get_device", "is_contiguous", "storage_offset"),
    *("__len__", "__hash__", "is_inference", "is_conj", "is_neg", "dim_order", "has_names"),
    *("is_pinned", "is_shared", "_is_view", "_is_zerotensor", "is_same_size"),
)
METADATA: set[Any] = {getattr(Tensor, name) for name in NAMES if hasattr(Tensor, name)}
METADATA |= {torch.numel, torch.is_floating_point, torch.is_complex, torch.is_conj, torch.is_neg}
KEEP = Tensor.retain_grad  # torch's own: the script's is averaged
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
    """Keep the gradient of a function of parameters: of the shard, which has its mean."""
    KEEP(held(x).local)


def gradient_hook(x: Any, hook: Any, local: Tensor) -> Any:
    """Return a hook of the shard that gives another one the gradient as the script sees it."""
    del local

    def call(gradient: Tensor | None) -> Any:
        if gradient is None:  # it reached others of its unit: one process calls no hook
            return None
        if not is_shard(x):  # replicated meanwhile
            return hook(gradient)
        mine = held(x)
        new = hook(state_of(mine.like(gradient)))
        if new is None or (is_shard(new) and held(new).layout == mine.layout):
            return None if new is None else held(new).local
        return mine.wholes.agreement.cut(whole_tensor(new), mine.layout)

    known: Any = call
    known.of_script = hook
    return call


def accumulation_hook(x: Any, hook: Any, local: Tensor) -> Any:
    """Return a hook of the shard that gives another one the parameter, if a gradient reached it."""
    reached = True

    def note(gradient: Tensor | None) -> None:
        nonlocal reached
        reached = gradient is not None

    if local.requires_grad:
        with own_hooks():
            local.register_hook(note)
    return lambda _: hook(x) if reached else None


HOOKS = {
    "_backward_hooks": gradient_hook,
    "_post_accumulate_grad_hooks": accumulation_hook,
}


def move_hooks(x: Any, local: Tensor) -> None:
    """Give a shard the hooks of the parameter that it is of; handles of these stay good."""
    for name, wrap in HOOKS.items():
        hooks = getattr(x, name)
        if hooks:
            for key, hook in hooks.items():
                hooks[key] = wrap(x, hook, local)
            setattr(local, name, hooks)


def hook_whole(whole: Any, mine: Held) -> None:
    """Give what is whole from now on the hooks of its shard, which comes behind it in a backward.

    Handles of these stay good.
    """
    group = mine.wholes.view.group
    hooks: Any = mine.local._backward_hooks or {}
    for key, call in hooks.items():

        def of_script(g: Tensor, key: int = key, hook: Any = call.of_script) -> Any:
            return hook(mean_over_ranks(g, group)) if key in hooks else None

        hooks[key] = lambda g: None
        with own_hooks():
            whole.register_hook(of_script)


@answers(Tensor.register_hook)
def register_hook(x: Any, hook: Any) -> Any:
    """Register a hook that gets the true gradient, sharded like the parameter."""
    local = held(x).local
    return local.register_hook(gradient_hook(x, hook, local))


@answers(Tensor.register_post_accumulate_grad_hook)
def register_post_accumulate_grad_hook(x: Any, hook: Any) -> Any:
    """Register a hook that gets the parameter, once its gradient is there."""
    local = held(x).local
    return local.register_post_accumulate_grad_hook(accumulation_hook(x, hook, local))


def _of_memory(function: Any) -> None:
    """Answer a question about memory by a whole in memory of its own."""
    ANSWERS[function] = lambda x: function(held(x).wholes.addressed(held(x)))


for _name in MEMORY:
    _of_memory(getattr(Tensor, _name))


def whole_tensor(x: Any) -> Tensor:
    """Return the whole of a tensor that a script gives, outside of any graph."""
    return held(x).wholes.plain(held(x)) if is_shard(x) else x.detach()
