"""Dispatch of functions of sharded tensors: by a cached decision, by a rule, or by a gather."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from autoddp.comm.context import Code
from autoddp.errors import BadInput, LostGradient
from autoddp.torch_internals import (
    current_node,
    dispatch_depth,
    has_own_functions,
    transform,
)
from autoddp.view.aliases import exposes
from autoddp.view.containers import is_shape, leaves_in
from autoddp.view.error_messages import OTHERS, WRONG, of_handler, reword
from autoddp.view.local_call import GATHER_ONCE, LocalCall
from autoddp.view.schema import schema_of
from autoddp.view.shard_sizes import Spec
from autoddp.view.sharded_tensor import DistributedTensor, Partial, ShardedTensor
from autoddp.view.state import View
from autoddp.view.table import (
    GRAPH,
    KNOWN,
    FunctionRule,
    in_place,
    is_mutable,
    original_of,
    refusal,
    rule_for,
)
from autoddp.view.work import SHARDED, WHOLE

MAX_DECISIONS = 16384  # cached decisions
ERRORS = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError),
    *(RuntimeError, TypeError, ValueError),
)
FUNCTION = int(Code.FUNCTION)  # an enum member is slower to look up
AS_STRIDED = {Tensor.as_strided, torch.as_strided}
GATHER = object()  # the decision to gather
# classes of tensors whose functions come first: they call again with plain tensors
FIRST: set[type] = set()
NUMPY = {"axis": "dim", "keepdims": "keepdim"}  # numpy's names, which torch accepts too


def dispatch(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Implement `__torch_function__`; use the cached decision for this schema if there is one."""
    if len(types) > 1 and not FIRST.isdisjoint(types):
        return NotImplemented
    key = schema_of(func, args, kwargs)
    if key is None:
        return compute(func, args, kwargs or {})
    spec = key[1] if len(key) > 1 else None
    if type(spec) is not Spec:
        spec = next((x for x in key if type(x) is Spec), None)
        if spec is None:
            return compute(func, args, kwargs or {})
    view: View = spec.view
    decision, context = view.decisions.get(key), view.context
    if (
        decision is None
        # decisions do not apply in threads, transforms, modes and autograd functions
        or context.depth[FUNCTION]
        or get_ident() != context.thread
        or transform()
        or (dispatch_depth() and not view.tracing)
        or (current_node() is not None and view.in_function())
    ):
        return compute(func, args, kwargs or {}, key)
    if decision is GATHER:
        return fall_back(func, args, kwargs or {})
    if view.work.kind is WHOLE:
        view.work.turn(SHARDED)
    try:
        return decision.run(func, args, kwargs)
    except WRONG as error:
        reword(error, func, args, kwargs or {})
        raise


def compute(func: Any, args: Any, kwargs: dict[str, Any], key: Any = None) -> Any:
    """Compute by the rule of `func`, else on the whole batch, as in a transform of `torch.func`.

    Under a mode of the script (`FlopCounterMode`) it sees operators, and these see the whole batch.
    """
    if rule_for(func) is None and (known := original_of(func)) is not None:
        return compute(known, args, kwargs)
    leaves = leaves_in(args, kwargs)
    me = next(x for x in leaves if type(x) is ShardedTensor or type(x) is Partial)
    view: View = me.owner
    observed = dispatch_depth() and not view.tracing and func not in GRAPH
    whole = transform() or _rules_are_off(view, me) or view.in_function() or observed
    try:
        out = NotImplemented if whole else _by_rule(view, func, args, kwargs, key, leaves)
    except WRONG as error:
        reword(error, func, args, kwargs)
        raise
    if out is NotImplemented:
        return fall_back(func, args, kwargs)
    if view.work.kind is WHOLE:
        view.work.turn(SHARDED)
    return out


def _note_write(func: Any, args: Any, out: Any) -> Any:
    """Note that a rule has written into its first argument, if `func` does; return `out`."""
    if args and type(args[0]) is ShardedTensor and in_place(func):
        args[0].wrote()
    return out


def _rules_are_off(view: View, me: Any) -> bool:
    """Return whether rules do not apply: in an autograd function of the script, and in threads.

    They do apply to a batch with a graph in a thread: its gradient arrives by local rows.
    """
    context = view.context
    in_thread = context.in_thread() and not me.local.requires_grad
    return bool(context.depth[Code.FUNCTION] or in_thread)


def _by_rule(
    view: View, func: Any, args: Any, kwargs: dict[str, Any], key: Any, leaves: list[Any]
) -> Any:
    """Compute by the rule of `func` and cache its decision; NotImplemented if there is no rule.

    Rules get `input=` as the first argument, and torch's names in place of numpy's.
    """
    rule = rule_for(func)
    kinds = {*map(type, leaves)}
    # `input` is torch's name of a first argument, except for `where`
    if not args and "input" in kwargs and "condition" not in kwargs:
        kwargs, key = {**kwargs}, None
        args = (kwargs.pop("input"),)
    if rule is None or not args or _blocked(leaves, kinds, rule.cached):
        return NotImplemented
    if kwargs and any(name in NUMPY for name in kwargs):
        kwargs, key = {NUMPY.get(name, name): value for name, value in kwargs.items()}, None
    if Partial in kinds and ShardedTensor in kinds and func not in GRAPH:
        args, kwargs = tree_map(
            lambda x: x.full() if type(x) is Partial else x, (args, kwargs), is_leaf=is_shape
        )
    out = _decision(rule, func, args, kwargs)
    if key is not None and rule.cached and (out is NotImplemented or isinstance(out, LocalCall)):
        if len(view.decisions) >= MAX_DECISIONS:
            view.decisions.clear()
        view.decisions[key] = GATHER if out is NotImplemented else out
    if out is GATHER_ONCE:
        return NotImplemented
    if isinstance(out, LocalCall):
        return out.run(func, args, kwargs)
    return out if out is NotImplemented else _note_write(func, args, out)


def _decision(rule: FunctionRule, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Return what the rule decides: to gather in place of an error, as torch then raises its own.

    A backward is not repeated, as its error may be of the script's own code. Errors of other types
    are those by which torch ends a checkpoint early, or a hook of the script the call; and what the
    handler of a signal raises, has nothing to do with the call that it interrupts.
    """
    try:
        return rule.decide(func, args, kwargs)
    except ERRORS as error:
        if func in GRAPH or isinstance(error, OTHERS) or of_handler(error):
            raise
        return GATHER_ONCE


def _blocked(leaves: list[Any], kinds: set[type], cached: bool) -> bool:
    """Return whether a tensor rules out a rule: a subclass with `__torch_function__` of its own.

    Cached rules are also ruled out if a rank has no rows: torch refuses many empty inputs.
    """
    if cached and any(type(x) is ShardedTensor and not x.sizes.smallest for x in leaves):
        return True
    others = (k for k in kinds if issubclass(k, Tensor) and not issubclass(k, DistributedTensor))
    return any(map(has_own_functions, others))


def fall_back(
    func: Any, args: Any, kwargs: dict[str, Any], name: str = "", untracked: bool = False
) -> Any:
    """Gather the arguments and call `func` on the whole batch; report the bytes under its name."""
    sharded = [x for x in leaves_in(args, kwargs) if type(x) is ShardedTensor]
    if sharded:
        view = sharded[0].spec.view
        size = sum(x.numel() * x.dtype.itemsize for x in sharded)
        view.gathered(name or getattr(func, "__name__", str(func)), size)
    return call_on_whole(func, args, kwargs, untracked or is_mutable(func))


def call_on_whole(func: Any, args: Any, kwargs: dict[str, Any], untracked: bool = False) -> Any:
    """Call `func` on gathered tensors and copy writes back, also those `untracked` by torch."""
    leaves = [x for x in leaves_in(args, kwargs) if isinstance(x, (ShardedTensor, Partial))]
    name = getattr(func, "__name__", "")
    out, wholes = _on_wholes(
        func, args, kwargs, leaves, untracked or _needs_base(func, args, kwargs)
    )
    if any(exposes(out, wholes[id(x)], name) and not _is_shared(x, wholes) for x in leaves):
        # a view: its memory has to be that of the base, and making it again changes nothing
        out, wholes = _on_wholes(func, args, kwargs, leaves, shared=True)
    for x in leaves:
        whole = wholes[id(x)]
        if isinstance(x, ShardedTensor):
            if exposes(out, whole, name) and not transform():
                x.based.export(whole, name)
            x.based.sync(untracked)  # at once: a base of `x.data` may be gone at the next read
        if out is whole:
            out = x  # an in-place function returns its argument
    return out


def _on_wholes(
    func: Any, args: Any, kwargs: dict[str, Any], leaves: list[Any], shared: bool
) -> tuple[Any, dict[int, Tensor]]:
    """Call `func` on gathered tensors; return its result and these, by the ids of the arguments."""
    wholes: dict[int, Tensor] = {}
    for x in leaves:
        if id(x) not in wholes:
            wholes[id(x)] = x.full(shared) if isinstance(x, ShardedTensor) else x.full()
    given, named = tree_map(lambda x: wholes.get(id(x), x), (args, kwargs), is_leaf=is_shape)
    return func(*given, **named), wholes


def _needs_base(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Return whether `func` may write into an argument, reads memory, or is not torch's own."""
    return (
        func not in KNOWN
        or func in AS_STRIDED
        or in_place(func)
        or kwargs.get("out") is not None
        or any(x is True for x in (*args, kwargs.get("inplace")))
    )


def _is_shared(x: Any, wholes: dict[int, Tensor]) -> bool:
    """Return whether the whole that was given for `x` is a view of its base's."""
    return not isinstance(x, ShardedTensor) or wholes[id(x)] is not x._whole


def torch_dispatch(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Implement `__torch_dispatch__`: compute on the whole what reaches it, or refuse it."""
    kwargs = kwargs or {}
    needs_grad = torch.is_grad_enabled() and func is not torch.ops.aten.detach.default
    if needs_grad and any(
        isinstance(x, (ShardedTensor, Partial)) and x.local.requires_grad
        for x in leaves_in(args, kwargs)
    ):
        raise LostGradient(
            f"{func} met a sharded batch below autograd, where its gradient would be lost; give it "
            "batch.clone().detach() if it needs no gradient, or run with --view local"
        )
    if type(args[0]) is ShardedTensor and torch.Tag.inplace_view in func.tags:
        raise BadInput(refusal(args[0].shape, func._schema.name.rpartition(":")[2]))
    return call_on_whole(func, args, kwargs, is_mutable(func))


def _install(function: Any) -> None:
    """Let `function` implement `__torch_function__`, in each class: torch looks it up each time."""
    for kind in KINDS:
        kind.__torch_function__ = classmethod(function)


KINDS: tuple[Any, ...] = (DistributedTensor, ShardedTensor, Partial)
_install(dispatch)
for _kind in KINDS:
    _kind.__torch_dispatch__ = classmethod(torch_dispatch)


@contextmanager
def counted(note: Callable[[Any, Any, Any], None]) -> Iterator[None]:
    """Call `note(func, args, out)` after each function of a sharded tensor inside."""

    def noted(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = dispatch(cls, func, types, args, kwargs)
        note(func, args, out)
        return out

    _install(noted)
    try:
        yield
    finally:
        _install(dispatch)
