"""The table of rules for torch functions, by the function itself, not by its name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F  # the field's name for it

from autoddp import torch_internals

OWNERS = (torch.Tensor, torch, F, torch.special, torch.linalg)
Rule = Callable[[Any, Any, dict[str, Any]], Any]

_RULES: dict[Any, Rule | None] = {}
_POINTWISE: list[Rule] = []  # the rule for whatever torch tags as pointwise


def functions(name: str) -> Iterator[Any]:
    """Yield every public function that torch has under this name."""
    for owner in OWNERS:
        found = getattr(owner, name, None)
        if callable(found):
            yield found


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register the decorated function for these names: `(func, args, kwargs) -> result`.

    It returns NotImplemented where it cannot prove that rows are enough.
    """

    def record(answer: Rule) -> Rule:
        for name in names:
            found = list(functions(name))
            assert found, f"torch has no {name}"
            _RULES.update(dict.fromkeys(found, answer))
        return answer

    return record


def attribute_rule(*names: str) -> Callable[[Rule], Rule]:
    """Register the decorated function for these attributes, read and written."""

    def record(answer: Rule) -> Rule:
        for name in names:
            slot = getattr(torch.Tensor, name)
            _RULES[slot.__get__] = _RULES[slot.__set__] = answer
        return answer

    return record


def pointwise_rule(answer: Rule) -> Rule:
    """Register the decorated function for all that torch tags as pointwise."""
    _POINTWISE.append(answer)
    return answer


def rule_for(func: Any) -> Rule | None:
    """Return the rule that answers for `func`, if any."""
    try:
        return _RULES[func]
    except KeyError:
        found = _RULES[func] = _POINTWISE[0] if is_pointwise(func) else None
        return found


# what is asked of a graph, or done to it: it is of this rank's rows, whatever else is whole
GRAPH: set[Any] = {torch.Tensor.backward, torch.Tensor.requires_grad_, torch.Tensor.detach_}
GRAPH |= {torch.Tensor.register_hook, torch.Tensor.retain_grad}
for _name in ("requires_grad", "grad", "grad_fn", "is_leaf"):
    _slot: Any = getattr(torch.Tensor, _name)
    GRAPH |= {_slot.__get__, _slot.__set__}

NUMPY = {"axis": "dim", "keepdims": "keepdim"}  # names that torch takes, too


def by_rule(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute by the rule of `func`, NotImplemented without one.

    Rules find what they work on at its place, and read torch's own names of arguments.
    """
    found = _RULES[func] if func in _RULES else rule_for(func)
    if found is None or not args:
        return NotImplemented
    if kwargs:
        kwargs = {NUMPY.get(name, name): value for name, value in kwargs.items()}
    return found(func, args, kwargs)


KNOWN = {
    f
    for owner in (*OWNERS, torch_internals.TensorBase)
    for f in vars(owner).values()
    if callable(f)
}
NOT_POINTWISE = {"equal", "where"}  # where() with one argument lists indices
UNTAGGED = {
    "__and__",
    "__or__",
    "__xor__",
    "__iand__",
    "__ior__",
    "__ixor__",
    "__invert__",
    "__rfloordiv__",
}
UNTAGGED |= {
    "copy_",
    "fill_",
    "zero_",
    "softsign",
    "tanhshrink",
    "hardswish",
    "complex",
    "isclose",
    "log_sigmoid",
}


def is_pointwise(func: Any) -> bool:
    """Return whether torch tags `func` as pointwise, and it draws no random numbers."""
    name = getattr(func, "__name__", "")
    if name in NOT_POINTWISE or func not in KNOWN:
        return False
    if name in UNTAGGED:
        return True
    bare = name.strip("_")
    names = [name, bare]
    if name.startswith(("__r", "__i")) and name.endswith("__"):
        names.append(bare[1:])  # `__rtruediv__` is truediv
    packets = [getattr(torch.ops.aten, n, None) for n in dict.fromkeys(names)]
    return any(isinstance(p, torch_internals.OpOverloadPacket) and _tagged(p) for p in packets)


def _tagged(packet: Any) -> bool:
    tags = [getattr(packet, overload).tags for overload in packet.overloads()]
    return any(torch.Tag.pointwise in t for t in tags) and not any(
        torch.Tag.nondeterministic_seeded in t for t in tags
    )


def is_mutable(func: Any) -> bool:
    """Return whether a kernel, also the script's own, says that it writes into its arguments."""
    if isinstance(func, torch_internals.OpOverloadPacket):
        return any(torch_internals.is_mutable(getattr(func, name)) for name in func.overloads())
    return isinstance(func, torch_internals.OpOverload) and torch_internals.is_mutable(func)


NOT_IN_PLACE = {"__invert__", "__int__", "__index__"}  # which begin as `__iadd__` does


def in_place(func: Any) -> bool:
    """Return whether a function writes into its first argument, by its name."""
    name: str = func.__name__
    if name.startswith("__i") and name.endswith("__"):
        return name not in NOT_IN_PLACE
    return name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))


def refused(shape: tuple[int, ...], name: str) -> str:
    """Return why an operation in place is not for a batch of this shape."""
    what, instead = "another shape", f"write x = x.{name[:-1]}(...)"
    if name == "set_":
        what, instead = "other memory", "use the other tensor itself"
    return (
        f"{name} gives a batch of shape {tuple(shape)} {what} in place, but each rank "
        f"holds its rows of it; {instead}, or run with --view local"
    )
