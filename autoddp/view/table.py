"""The table of rules, by torch function (not by name)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FunctionType, MethodWrapperType
from typing import Any

import torch
import torch.nn.functional as F  # the field's name for it
from torch.overrides import handle_torch_function

from autoddp import torch_internals

OWNERS = (torch.Tensor, torch, F, torch.special, torch.linalg, torch.fft)
Decide = Callable[[Any, Any, dict[str, Any]], Any]


@dataclass(frozen=True)
class FunctionRule:
    """A rule: `decide(func, args, kwargs)`, and whether its decisions are cached.

    `decide` returns a `LocalCall`, or NotImplemented to gather, or the result itself.
    """

    decide: Decide
    cached: bool


_RULES: dict[Any, FunctionRule | None] = {}
POINTWISE = "pointwise"  # key of the rule for all functions that torch tags as pointwise


def functions(name: str) -> Iterator[Any]:
    """Yield every public torch function of this name."""
    for owner in OWNERS:
        found = getattr(owner, name, None)
        if callable(found):
            yield found


def rule(*names: Any, cached: bool = True) -> Callable[[Decide], Decide]:
    """Register the decorated function as the rule of these functions, or names of functions.

    If its decisions are cached, they may depend only on placements, shapes and constants, and on
    whether a float is zero.
    """

    def record(decide: Decide) -> Decide:
        for name in names:
            found = list(functions(name)) if isinstance(name, str) else [name]
            assert found, f"torch has no {name}"
            _RULES.update(dict.fromkeys(found, FunctionRule(decide, cached)))
        return decide

    return record


def uncached_rule(*names: Any) -> Callable[[Decide], Decide]:
    """Register a rule that runs at each call: it may read anything, and return the result."""
    return rule(*names, cached=False)


def attribute_rule(*names: str) -> Callable[[Decide], Decide]:
    """Register a rule for reading and writing these attributes."""
    slots: list[Any] = [getattr(torch.Tensor, name) for name in names]
    return uncached_rule(*(slot.__get__ for slot in slots), *(slot.__set__ for slot in slots))


def pointwise_rule(decide: Decide) -> Decide:
    """Register a rule for all functions that torch tags as pointwise."""
    _RULES[POINTWISE] = FunctionRule(decide, cached=True)
    return decide


def rule_for(func: Any) -> FunctionRule | None:
    """Return the rule of `func`, or None."""
    try:
        return _RULES[func]
    except KeyError:
        found = _RULES[func] = _RULES[POINTWISE] if is_pointwise(func) else None
        return found


# functions of the autograd graph, which is a graph of local rows even where all else is whole
GRAPH: set[Any] = {torch.Tensor.backward, torch.Tensor.requires_grad_, torch.Tensor.detach_}
GRAPH |= {torch.Tensor.register_hook, torch.Tensor.retain_grad}
for _name in ("requires_grad", "grad", "grad_fn", "is_leaf"):
    _slot: Any = getattr(torch.Tensor, _name)
    GRAPH |= {_slot.__get__, _slot.__set__}

KNOWN = {
    f
    for owner in (*OWNERS, torch_internals.TensorBase)
    for f in vars(owner).values()
    if callable(f)
}
NOT_POINTWISE = {"equal", "where"}  # where() with one argument lists indices
UNTAGGED = {
    *("__and__", "__or__", "__xor__", "__iand__", "__ior__", "__ixor__", "__invert__"),
    *("__rfloordiv__", "__rmod__", "floor_divide", "isreal", "copy_", "fill_", "zero_"),
    *("softsign", "tanhshrink", "hardswish", "complex", "isclose", "log_sigmoid"),
}


def is_pointwise(func: Any) -> bool:
    """Return whether torch tags `func` as pointwise, and not as random."""
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


# torch's functions and methods in Python by their code, and all methods by their names; those that
# a decorator has wrapped share a code
ORIGINALS = {
    f.__code__: f
    for owner in (F, torch.functional, torch.Tensor)
    for f in vars(owner).values()
    if isinstance(f, FunctionType) and not hasattr(f, "__wrapped__")
}
METHODS = {
    name: f
    for name, f in {**vars(torch_internals.TensorBase), **vars(torch.Tensor)}.items()
    if callable(f) and not isinstance(f, type)
}


# what reads and writes an attribute at which a property of ours stands, and torch's own
ACCESSORS: dict[Any, Any] = {}


def stands_at(slot: Any, here: property) -> property:
    """Note that a property stands at an attribute, whose accessors torch looks up by its name."""
    for name in ("__get__", "__set__", "__delete__"):
        ACCESSORS[getattr(here, name)] = getattr(slot, name)
    return here


def original_of(func: Any) -> Any:
    """Return torch's function if `func` is a replacement for it, ours or the script's, else None.

    A script may set `F.relu` to a function that calls the original one. The original then passes
    `F.relu`, the replacement, to `handle_torch_function`; the code that calls tells the original. A
    method in C passes what the class has by its name.
    """
    if func in KNOWN:
        return None
    if isinstance(func, MethodWrapperType):  # of an attribute
        return ACCESSORS.get(func)
    if func in ACCESSORS:
        return ACCESSORS[func]
    frame: Any = sys._getframe() if isinstance(func, FunctionType) else None
    while frame is not None and frame.f_code is not handle_torch_function.__code__:
        frame = frame.f_back
    found = None if frame is None else ORIGINALS.get(frame.f_back.f_code)
    if found is None:
        now = vars(torch.Tensor)
        found = next((f for name, f in METHODS.items() if now.get(name, f) is func), None)
    return None if found is func else found


def is_mutable(func: Any) -> bool:
    """Return whether the schema of an operator has an argument that it writes into."""
    if isinstance(func, torch_internals.OpOverloadPacket):
        return any(torch_internals.is_mutable(getattr(func, name)) for name in func.overloads())
    return isinstance(func, torch_internals.OpOverload) and torch_internals.is_mutable(func)


SHAPES = ("squeeze_", "unsqueeze_", "t_", "transpose_", "swapaxes_", "swapdims_")
MEMORY = ("resize_", "resize_as_", "as_strided_")
# named like `__iadd__`, or functions that change how memory is seen, and write nothing there
NOT_IN_PLACE = {"__invert__", "__int__", "__index__", *SHAPES, *MEMORY}


def in_place(func: Any) -> bool:
    """Return whether a function, by its name, writes into its first argument."""
    name: str = getattr(func, "__name__", "")
    if name in NOT_IN_PLACE:
        return False
    if name.startswith("__i") and name.endswith("__"):
        return True
    return name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))


def refusal(shape: tuple[int, ...], name: str) -> str:
    """Return the message that refuses an in-place function of a batch of this shape."""
    what, instead = "another shape", f"write x = x.{name[:-1]}(...)"
    if name == "set_":
        what, instead = "other memory", "use the other tensor itself"
    return (
        f"{name} gives a batch of shape {tuple(shape)} {what} in place, but each rank "
        f"holds its rows of it; {instead}, or run with --view local"
    )


def part_of_complex(name: str) -> property:
    """Return `real` or `imag` for a class of tensors: torch writes into them past all functions."""
    plain = getattr(torch.Tensor, name)

    def write(x: Any, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            plain.__get__(x).copy_(value)
        else:
            plain.__set__(x, value)  # raises

    return property(plain.__get__, write)
