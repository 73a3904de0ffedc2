"""The tensors of which each rank holds a shard: parameters, and what is computed from them."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from autoddp.comm.context import Code
from autoddp.errors import BadInput, LostGradient
from autoddp.torch_internals import plain_tensors, swap_implementation
from autoddp.training.parameters.layout import Layout
from autoddp.training.parameters.saving import pickled_by_torch
from autoddp.view.aliases import version
from autoddp.view.redistribute import Renamed, node_name, with_node_name
from autoddp.view.sharded_tensor import TensorType

if TYPE_CHECKING:
    from autoddp.training.parameters.wholes import Unit, Wholes

CLASS: Any = vars(object)["__class__"]  # ours have a property of that name
MANY = 16  # users of one memory, of which the dead are forgotten then
HELD = "_autoddp_held"  # the attribute of a sharded tensor with its `Held`


class Memory:
    """What tensors that share a shard's memory have in common.

    Attributes:
        writes: How many functions have written into it.
        copy: Finds the memory of a whole of its own, as long as somebody holds it.
        copied: The writes that this copy has seen, and the version.
    """

    __slots__ = ("_users", "copied", "copy", "writes")

    def __init__(self) -> None:
        self.writes = 0
        self._users: list[weakref.ref[Any]] = []
        self.copied: tuple[int, int] | None = None
        self.copy: Callable[[], torch.UntypedStorage | None] = lambda: None

    def used_by(self, user: Any) -> Any:
        """Note a tensor, or a region that has views, that is in this memory as long as it lives."""
        if len(self._users) > MANY:
            self._users = [known for known in self._users if known() is not None]
        self._users.append(weakref.ref(user))
        return self._users[-1]

    def users(self) -> list[Any]:
        """Return the tensors and regions in this memory."""
        return [user for known in self._users if (user := known()) is not None]


class Held:
    """What a rank holds of a tensor.

    Attributes:
        local: This rank's elements, one-dimensional; a leaf of the graph for a parameter.
        layout: Where the elements of all ranks are.
        wholes: The whole tensors of this job.
        memory: What tensors in the same memory share.
        unit: The tensors that are gathered with it; None if it is gathered alone.
        index: Its place among these.
        grad: The tensor that stands for `local.grad`.
        tensor: The tensor that holds this.
    """

    __slots__ = (
        *("__weakref__", "grad", "index", "layout", "local", "memory", "tensor", "unit"),
        "wholes",
    )

    def __init__(
        self,
        local: Tensor,
        layout: Layout,
        wholes: Wholes,
        memory: Memory | None = None,
        unit: Unit | None = None,
        index: int = 0,
    ) -> None:
        self.local, self.layout, self.wholes = local, layout, wholes
        self.memory = memory or Memory()
        self.unit, self.index = unit, index
        self.grad: Tensor | None = None
        self.tensor: Callable[[], Tensor | None] = lambda: None

    def written(self) -> tuple[int, int]:
        """Return the writes and the version: autograd adds to a gradient past any function."""
        return self.memory.writes, version(self.local)

    def alias(self, local: Tensor) -> Held:
        """Return what a tensor holds that shares this one's memory."""
        return Held(local, self.layout, self.wholes, self.memory, self.unit, self.index)

    def like(self, local: Tensor) -> Held:
        """Return what a tensor holds that is placed like this one, in memory of its own."""
        return Held(local, self.layout, self.wholes)


class Sharded:
    """The tensors of this placement; `functions.py` defines their functions."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return nn.Parameter if getattr(self, "_is_param", False) else Tensor

    def __repr__(self, **kwargs: Any) -> str:
        """Return the text of the whole tensor."""
        return repr(printed(self))

    def __format__(self, spec: str) -> str:
        return format(printed(self), spec)

    def __deepcopy__(self, memo: dict[Any, Any]) -> Any:
        """Return a copy that is sharded alike; copies of one block's parameters are one, too."""
        if id(self) in memo:
            return memo[id(self)]
        mine = held(self)
        if not mine.local.is_leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user (graph leaves) support the deepcopy "
                "protocol at the moment."
            )
        unit = mine.unit
        if unit is not None:
            key = "autoddp", id(unit)
            unit = memo[key] = memo.get(key) or unit.empty()
        local = mine.local.detach().clone()
        new = Held(local, mine.layout, mine.wholes, None, unit, mine.index)
        if unit is not None:
            unit.replace(mine.index, new)
        made = made_of(new, type(self), mine.local.requires_grad)
        if not isinstance(self, ShardedParameter):
            attributes = {k: v for k, v in self.__dict__.items() if k != HELD}
            made.__dict__.update(copy.deepcopy(attributes, memo))
        memo[id(self)] = made
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle the whole tensor; those in one memory are in one memory again."""
        whole = written(self) if pickled_by_torch() else separate(self)
        whole.__dict__.update({k: v for k, v in self.__dict__.items() if k != HELD})
        return whole.__reduce_ex__(protocol)


class ShardedState(Sharded, Tensor, metaclass=TensorType):  # type: ignore[misc]
    """A sharded tensor that is no parameter: a gradient, an optimizer's state, an average."""


class ShardedParameter(Sharded, nn.Parameter):  # type: ignore[misc]
    """A parameter of which this rank holds a shard; the script sees the whole of it."""

    _is_param = True


KINDS = (ShardedState, ShardedParameter)
ShardedState.__name__ = ShardedState.__qualname__ = "Tensor"
ShardedParameter.__name__ = ShardedParameter.__qualname__ = "Parameter"
ShardedState.__module__, ShardedParameter.__module__ = "torch", "torch.nn.parameter"


def is_shard(x: object) -> bool:
    """Return whether each rank holds a shard of this tensor of parameters."""
    kind = type(x)
    return kind is ShardedParameter or kind is ShardedState


def held(x: Any) -> Held:
    """Return what this rank holds of a sharded tensor."""
    found: Held = x.__dict__[HELD]
    return found


def hold(x: Any, mine: Held) -> None:
    """Set what this rank holds of a sharded tensor."""
    x.__dict__[HELD] = mine
    mine.tensor = mine.memory.used_by(x)


def printed(x: Any) -> Tensor:
    """Return the whole of a sharded tensor, as it is printed: with the graph that it has."""
    local, whole = held(x).local, held(x).wholes.plain(held(x))
    if isinstance(x, nn.Parameter) or not local.requires_grad:
        return _of_kind(x, whole)
    leaf = whole.detach().requires_grad_()
    with torch.enable_grad():
        return leaf if local.is_leaf else with_node_name(Renamed, node_name(local)).apply(leaf)


def separate(x: Any) -> Tensor:
    """Return the whole of a sharded tensor in memory of its own."""
    return _of_kind(x, held(x).wholes.separate(held(x)))


def written(x: Any) -> Tensor:
    """Return the whole of a sharded tensor for a file that is being written."""
    return _of_kind(x, held(x).wholes.written(held(x)))


def _of_kind(x: Any, whole: Tensor) -> Tensor:
    if not isinstance(x, nn.Parameter):
        return whole
    return nn.Parameter(whole, requires_grad=held(x).local.requires_grad)


def state_of(mine: Held) -> ShardedState:
    """Return a tensor of what this rank holds."""
    if mine.local.requires_grad and mine.local.is_leaf:  # as `zeros_like` makes it
        require(mine.local)
    made: ShardedState = _wrapper(ShardedState, mine)
    hold(made, mine)
    return made


def made_of(mine: Held, kind: Any, requires_grad: bool) -> Any:
    """Return a tensor of this class of what this rank holds, a leaf if it needs a gradient."""
    require(mine.local, requires_grad)
    made = _wrapper(kind, mine)
    hold(made, mine)
    return made


def require(local: Tensor, requires_grad: bool = True) -> None:
    """Set whether a shard needs a gradient; that of a leaf is averaged where it is reduced."""
    local.requires_grad_(requires_grad)
    if requires_grad and local.is_leaf:
        local._autoddp_rows = True  # type: ignore[attr-defined]


def become(parameter: Any, mine: Held) -> None:
    """Let a tensor, which stays the same object, be what this rank holds of it."""
    kind = ShardedParameter if isinstance(parameter, nn.Parameter) else ShardedState
    made = _wrapper(kind, mine)
    with plain_tensors():
        swap_implementation(parameter, made)
        CLASS.__set__(parameter, kind)
    hold(parameter, mine)


def _wrapper(kind: Any, mine: Held) -> Any:
    local, layout = mine.local, mine.layout
    return Tensor._make_wrapper_subclass(
        kind, layout.shape, strides=layout.strides, dtype=local.dtype, device=local.device
    )


def refuse_threads(wholes: Wholes) -> None:
    """Raise where other ranks do not follow.

    Raises:
        BadInput: In a thread, a forked process, or a data set of the script.
    """
    context = wholes.view.context
    if context.in_thread() or not context.is_rank() or context.depth[Code.FETCH]:
        raise BadInput(
            "a sharded parameter is used in a thread, a process or a data set of the script, where "
            "the other ranks do not follow to gather it; run with --parameters replicated"
        )


def refuse_below(func: Any, found: list[Held]) -> None:
    """Raise where a function of parameters that autograd does not see cannot be computed.

    Raises:
        BadInput: In a thread, a forked process, or a data set of the script.
        LostGradient: One of them needs a gradient.
    """
    refuse_threads(found[0].wholes)
    needs_grad = torch.is_grad_enabled() and func is not torch.ops.aten.detach.default
    if needs_grad and any(x.local.requires_grad for x in found):
        raise LostGradient(
            f"{func} met a sharded parameter below autograd, where its gradient would be lost; "
            "give it p.detach() if it needs no gradient, or run with --parameters replicated"
        )
