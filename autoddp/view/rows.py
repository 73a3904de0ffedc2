"""`Rows`, a batch of which this rank holds a part, and `Partial`, a sum that nobody has read."""

from __future__ import annotations

import weakref
from contextlib import nullcontext
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from autoddp.comm.context import Code
from autoddp.errors import BadInput, LostGradient
from autoddp.torch_internals import dispatch_depth, in_function, outside_transforms, transform
from autoddp.view.boundaries import Gather, SumOverRanks, named, node_of, part, strides_of
from autoddp.view.cuts import Cuts
from autoddp.view.family import RAW, WholeFamily, as_made, is_shape, same, shows, take, version
from autoddp.view.likeness import Like
from autoddp.view.partials import Part
from autoddp.view.state import View
from autoddp.view.table import GRAPH, by_rule, in_place, is_mutable, refused
from autoddp.view.wording import WRONG, retell


class SplitTensor(Tensor, metaclass=Like):
    """A tensor to the script, which ranks hold in parts."""

    @property  # type: ignore[misc]
    def __class__(self) -> type[Tensor]:  # type: ignore[override]
        return Tensor

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's stub lacks these defaults
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return below(func, args, kwargs or {})

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return answer(func, args, kwargs or {})


class Rows(SplitTensor, metaclass=Like):
    """A whole batch to the script; on this rank `local`, its rows of it, along dimension `at`.

    Everything that has no rule gathers, and is computed on the whole by every rank.
    """

    cuts: Cuts
    at: int
    whole_shape: tuple[int, ...]  # which `shape` answers, too, after torch has asked for a rule
    family: WholeFamily
    tally: Any  # how many targets are ignored, if counted when the batch was fetched

    @staticmethod
    def __new__(
        cls: type[Rows], local: Tensor, cuts: Cuts, at: int = 0, family: WholeFamily | None = None
    ) -> Rows:
        shape = list(local.shape)
        assert shape[at] == cuts.mine, f"{shape} along {at} is not {cuts}"
        shape[at] = cuts.total
        strides = None if local.is_contiguous() else strides_of(local, shape)
        made: Rows = Tensor._make_wrapper_subclass(
            cls, shape, strides=strides, dtype=local.dtype, device=local.device
        )
        made.whole_shape = tuple(shape)
        return made

    def __init__(
        self, local: Tensor, cuts: Cuts, at: int = 0, family: WholeFamily | None = None
    ) -> None:
        self._local, self.cuts, self.at = local, cuts, at
        self.family = family or WholeFamily()
        self.tally = None
        self._whole: Tensor | None = None
        self._versions = (0, 0)

    @property
    def local(self) -> Tensor:
        """Return this rank's rows, up to date."""
        if self.family.gathered or self.family.lent:
            self.family.take_over()
        return self._local

    def full(self) -> Tensor:
        """Return the whole batch, gathered once for all that read it before the next write."""
        local = self.local
        whole = self._whole
        needs = local.requires_grad and torch.is_grad_enabled()
        if (
            whole is not None
            and self._versions[0] == version(local)
            and not self.family.apart
            and (whole.requires_grad or not needs)
        ):
            return whole
        borrowed = self.family.borrowed(local) if self.family.lent and not needs else None
        with outside_transforms() if transform() else nullcontext(), as_made(local):
            gather = named(Gather, node_of(local)) if needs else Gather
            whole = gather.apply(local, self.cuts, self.at) if borrowed is None else borrowed
        if self._whole is None and not whole.is_inference():
            self.family.gathered.append(weakref.ref(self))
        self._whole, self._versions = whole, (version(local), version(whole))
        return whole

    def take_over(self, unseen: bool = False) -> None:
        """Write this rank's part of the gathered whole into the rows, if somebody wrote there."""
        whole = self._whole
        if whole is None:
            return
        unseen |= whole.is_inference()
        if not unseen and whole._version == self._versions[1]:
            return
        self._versions = (self._versions[0], version(whole))
        mine = (
            part(whole.detach(), self.cuts, self.at) if unseen else part(whole, self.cuts, self.at)
        )
        if not unseen or not same(mine, self._local):
            take(self._local, mine)
        self._versions = (version(self._local), version(whole))

    def settle(self, out: Any, func: Any, unseen: bool = False) -> None:
        """Take over what `func`, given the whole, wrote there; note if `out` shows its memory."""
        self.take_over(unseen)
        self.lend(out, func)
        if self._whole is not None and self._whole.is_inference():
            self._whole = None  # it counts no versions: nobody could tell whether it is up to date

    def lend(self, out: Any, func: Any) -> None:
        """Note if `out`, computed of the whole, lets the script see its memory."""
        whole, name = self._whole, getattr(func, "__name__", "")
        if whole is not None and not transform() and shows(out, whole, name):
            raw = whole.device.type == "cpu" or name in RAW  # a plain view may be read as an array
            self.family.lend(whole, self._local, self.cuts, self.at, raw)


class Partial(SplitTensor, metaclass=Like):
    """A 0-dim sum over ranks of which each knows its part; reading reduces, backward() need not."""

    owner: View

    @staticmethod
    def __new__(
        cls: type[Partial],
        local: Tensor,
        view: View,
        dtype: torch.dtype | None = None,
        known: Part | None = None,
        node: str = "",
    ) -> Partial:
        kind = dtype or local.dtype
        return Tensor._make_wrapper_subclass(cls, (), dtype=kind, device=local.device)

    def __init__(
        self,
        local: Tensor,
        view: View,
        dtype: torch.dtype | None = None,
        known: Part | None = None,
        node: str = "",
    ) -> None:
        self.local, self.owner, self._node = local, view, node
        self.declared = dtype or local.dtype
        self._part = known or view.pending.add(local)
        self._value: Tensor | None = None
        self._written = 0

    @property
    def node(self) -> str:
        """Return the kind of `grad_fn` that the sum has in one process."""
        return self._node or node_of(self.local)

    @property
    def unread(self) -> bool:
        """Return whether `local` still stands for the sum: nobody has written into the value."""
        return self._value is None or self._value._version == self._written

    def full(self) -> Tensor:
        """Return the sum, settling all that are unread."""
        needs = self.local.requires_grad and torch.is_grad_enabled()
        value = self._value
        if value is not None and (value.requires_grad or not needs or not self.unread):
            return value
        if self._part.total is None:
            self.owner.pending.settle()
        total = self._part.total
        assert total is not None
        local = self.local.to(self.declared)
        summed = named(SumOverRanks, self.node) if needs else SumOverRanks
        value = summed.apply(local, self.owner.group, total.to(self.declared))
        if not value.is_inference():
            self._value, self._written = value, value._version
        return value


for _kind in (SplitTensor, Rows, Partial):
    _kind.__name__, _kind.__qualname__, _kind.__module__ = "Tensor", "Tensor", "torch"


def split(x: object) -> TypeGuard[Rows]:
    """Return whether `x` is a batch held by rows."""
    return type(x) is Rows


def full(x: Any) -> Any:
    """Return `x` as one process has it: gathered if held by rows, summed if it is a part."""
    kind = type(x)  # quicker than to ask for an instance, which looks at `__class__`
    return x.full() if kind is Rows or kind is Partial else x


def owner_of(x: Rows | Partial) -> View:
    """Return the view in which a batch or a sum is held."""
    return x.cuts.view if isinstance(x, Rows) else x.owner


def view_of(args: Any) -> View:
    """Return the view of the first `Rows` or `Partial` among the leaves of `args`."""
    for leaf in tree_flatten(args)[0]:
        if isinstance(leaf, (Rows, Partial)):
            return owner_of(leaf)
    raise AssertionError("no batch held by rows among the arguments")


def answer(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute by rule, or on the whole, as always under a transform of torch.func.

    A mode of the script's (`FlopCounterMode`) sees operators, which shall be those of the batch.
    """
    whole = transform() or _on_wholes(args, kwargs) or (dispatch_depth() and func not in GRAPH)
    try:
        out = NotImplemented if whole else by_rule(func, args, kwargs)
    except WRONG as error:
        retell(error, func, args, kwargs)
        raise
    if out is NotImplemented:
        out = on_the_whole(func, args, kwargs)
    if args and type(args[0]) is Rows and args[0].family.lent and in_place(func):
        args[0].family.refresh()
    return out


def _on_wholes(args: Any, kwargs: dict[str, Any]) -> bool:
    """Return whether a rule has no place: in the script's own autograd function, and in a thread.

    A batch with a graph has its gradient from this rank's rows, wherever it goes on.
    """
    me: Any = args[0] if args else None
    held = type(me) is Rows or type(me) is Partial
    context = (owner_of(me) if held else view_of((args, kwargs))).context
    apart = context.in_thread() and not (held and me.local.requires_grad)
    return bool(apart or context.depth[Code.FUNCTION] or in_function())


def on_the_whole(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Gather what `func` is given, and compute it as one process would."""
    leaves = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, (Rows, Partial))]
    if any(isinstance(x, Rows) for x in leaves):
        view_of(leaves).gathered(getattr(func, "__name__", str(func)))
    return of_the_whole(func, args, kwargs, is_mutable(func))


def of_the_whole(func: Any, args: Any, kwargs: dict[str, Any], unseen: bool = False) -> Any:
    """Call `func` with wholes and take over its writes, also any `unseen` by torch."""
    leaves = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, (Rows, Partial))]
    wholes: dict[int, Tensor] = {}
    for x in leaves:
        if id(x) not in wholes:
            wholes[id(x)] = x.full()
    given, named = tree_map(lambda x: wholes.get(id(x), x), (args, kwargs), is_leaf=is_shape)
    out = func(*given, **named)
    for x in leaves:
        is_it = out is not None and out is (x._whole if isinstance(x, Rows) else x._value)
        if isinstance(x, Rows):
            x.settle(out, func, unseen)
        if is_it:
            out = x  # an operation in place returns what it was called on
    return out


def below(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute on the whole what arrived below autograd, past every rule, or refuse it."""
    wants = torch.is_grad_enabled() and func is not torch.ops.aten.detach.default
    if wants and any(
        isinstance(x, (Rows, Partial)) and x.local.requires_grad
        for x in tree_flatten((args, kwargs))[0]
    ):
        raise LostGradient(
            f"{func} met a batch that is held by rows below autograd, where its gradient would be "
            "lost; give it batch.clone().detach() if it needs no gradient, or run with --view local"
        )
    if split(args[0]) and torch.Tag.inplace_view in func.tags:
        raise BadInput(refused(args[0].shape, func._schema.name.rpartition(":")[2]))
    return of_the_whole(func, args, kwargs, is_mutable(func))
