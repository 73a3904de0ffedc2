"""A call that is tried on copies of some rows and watched; what holds them is put back after."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten
from torch.utils.weak import WeakTensorKeyDictionary

from autoddp.torch_internals import DispatchMode, OpOverload, parts_of
from autoddp.view.cuts import Cuts
from autoddp.view.draws import Draws, is_random
from autoddp.view.generators import Generators
from autoddp.view.places import Shapes
from autoddp.view.proof.contents import PLAIN
from autoddp.view.proof.counts import Asked
from autoddp.view.proof.flow import Flow, memory_of, tells_values
from autoddp.view.proof.reach import Reach
from autoddp.view.state import View


@dataclass(frozen=True)
class TrialCall:
    """The arguments of a call, where the batch lies in each leaf of them, and how it is cut."""

    reach: Reach
    ats: list[int | None]
    cuts: Cuts

    @property
    def holders(self) -> int:
        """Return how many leaves hold the batch."""
        return sum(at is not None for at in self.ats)


@dataclass
class Trial:
    """A call to be tried on `leaves`: those with a batch dimension are cut, others passed on."""

    view: View
    run: Callable[..., Any]
    given: TrialCall
    leaves: list[Any]
    size: int  # rows that are tried, of those of the whole batch
    parts: list[tuple[int, int]] = field(default_factory=list)
    before: Generators = field(default_factory=Generators)
    inside: bool = False  # whether a kernel draws inside: it is tried without

    @property
    def pairs(self) -> list[tuple[Any, int | None]]:
        """Return each leaf, and where the batch lies in it."""
        return list(zip(self.leaves, self.given.ats, strict=True))

    def inputs(self, start: int, count: int, keep: int | None) -> list[Any]:
        """Copy `count` rows; with `keep`, all others are replaced by that row."""
        made = []
        for x, at in self.pairs:
            if at is None:
                made.append(
                    x.detach().requires_grad_(x.requires_grad) if isinstance(x, Tensor) else x
                )
                continue
            rows = x.detach().narrow(at, start, count).clone()
            if keep is not None:
                rows.copy_(x.detach().narrow(at, keep, 1).expand_as(rows))
            made.append(rows.requires_grad_(x.requires_grad))
        return made

    @contextmanager
    def called(self, made: list[Any]) -> Iterator[Reach]:
        """Make the call; yield what came back and what it left; afterwards, nothing is left."""
        reach = self.given.reach
        values = reach.fill(made)
        try:
            out = reach.call(self.run, values)
            reach.put_back()
            yield reach.after(out)
        finally:
            reach.restore()

    def forward(self, start: int, count: int, keep: int | None = None) -> Forward:
        """Run the call on some rows, drawing as the whole draws."""
        self.before.put_back()
        printed = self.view.context.printed
        printed.clear()
        made = self.inputs(start, count, keep)
        at = next(a for a in self.given.ats if a is not None)
        cut = [x for x, a in zip(made, self.given.ats, strict=True) if a is not None]
        normalized: list[Tensor] = []
        self.view.noted = lambda x: normalized.append(x.detach().clone())
        asked = Asked(count)
        with ExitStack() as modes:
            watch = modes.enter_context(TrialWatch(cut))
            self.view.holds = watch.of_rows
            draws = modes.enter_context(Draws(count, start, self.size, at))
            modes.enter_context(asked.listening())
            with self.called(made) as left:
                modes.close()
                self.inside |= draws.inside
                same = {
                    id(x): Same(k)
                    for k, x in enumerate(self.given.reach.leaves)
                    if isinstance(x, Tensor)
                }
                same |= {id(m): Same(k) for k, m in enumerate(made) if isinstance(m, Tensor)}
                out = [same.get(id(x), x) for x in left.leaves]
                sources = [watch.flow.sources(x) for x in out]
                if watch.leaves_behind([*made, *left.leaves]):
                    raise Refused("it makes a leaf, whose gradient is of rows")
        if left.refused or draws.permutes:
            raise Refused(left.refused or "it draws a permutation of its rows")
        plain = [x.detach() if isinstance(x, Tensor) else x for x in out]
        apart = [watch.of_no_rows(x) for x in out]
        own = [own_of(x) for x in out]
        shown = normalized, watch.dtypes, draws.shapes, [*printed], watch.flow, sources, asked
        return Forward(plain, own, apart, left.layout, *shown)

    def ends(self, count: int) -> list[tuple[int, int, int]]:
        """Return start, count and the outermost row of the first and of the last rows."""
        return [(0, count, 0), (self.size - count, count, self.size - 1)]

    def differs(self, start: int, count: int, keep: int) -> bool:
        """Return whether some of these rows are others than the one to keep."""
        cut = [(x.detach(), at) for x, at in self.pairs if at is not None]
        return any(
            not torch.equal(x, y.expand_as(x))
            for x, y in ((x.narrow(at, start, count), x.narrow(at, keep, 1)) for x, at in cut)
        )


@dataclass(frozen=True)
class Same:
    """A leaf that the call was given: it came back, or is where it was."""

    number: int


@dataclass
class Forward:
    """The outputs of one run, and what BatchNorm was given.

    Attributes:
        own: The attributes of those outputs that are tensors of a class of their own, else None.
        apart: Whether an output is a tensor that was computed of no rows, as a table of positions.
        dtypes: What was computed in, of the rows, on the way.
        drawn: The shapes of what it drew.
        printed: What it would have printed.
        flow: What came of the rows on the way.
        sources: The results of that flow which each output holds.
        asked: What was compared of sizes on the way.
    """

    out: list[Any]
    own: list[Reach | None]
    apart: list[bool]
    layout: Hashable
    normalized: list[Tensor]
    dtypes: set[torch.dtype]
    drawn: Shapes
    printed: list[Any]
    flow: Flow
    sources: list[frozenset[int]]
    asked: Asked


DECIDES = "it decides in Python by values of the batch"
PASSING = "it decides in Python by a number that is drawn, or that may change between calls"
PLAIN_KINDS = (Tensor, nn.Parameter)


def own_of(x: Any) -> Reach | None:
    """Return the class and the attributes of a tensor that is more than a tensor, else None."""
    if not isinstance(x, Tensor) or type(x) in PLAIN_KINDS:
        return None
    return Reach((vars(x),), (type(x).__qualname__,))


CONSTANT = (*PLAIN, Same, torch.dtype, torch.device, torch.Size)


def equal(a: Any, b: Any) -> bool:
    """Return whether two outputs that are no tensors are the same for all rows."""
    if a is b or type(a) is not type(b) or not isinstance(a, CONSTANT):
        return a is b
    return bool(a == b or (a != a and b != b))  # neither is a number


def alike(whole: Reach | None, part: Reach | None) -> bool:
    """Return whether outputs of a class of their own have the same attributes.

    If so, the attributes of a rank's rows will be those of the whole.
    """
    if whole is None or part is None:
        return whole is part
    if whole.layout != part.layout or whole.refused:
        return False
    both = zip(whole.leaves, part.leaves, strict=True)
    return all(
        torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else equal(a, b)
        for a, b in both
    )


class Refused(BaseException):
    """The end of a trial that need not go on: past whatever the script catches."""


class TrialWatch(DispatchMode):
    """A mode that ends a trial where it can no longer show that the call is row-wise.

    That is where Python reads a value that came of the rows, or a tensor of another graph enters.
    """

    def __init__(self, inputs: list[Tensor]) -> None:
        super().__init__()
        self.known: Any = WeakTensorKeyDictionary()
        self.passing: Any = WeakTensorKeyDictionary()
        self.given = {id(x) for x in inputs if x.requires_grad}
        self.dtypes: set[torch.dtype] = set()
        self.flow = Flow(inputs)
        for x in inputs:
            self.known[x] = True
        # as_subclass() makes another object of an output, past this mode: it is known by its memory
        self.memory: dict[int, bool] = {memory_of(x): True for x in inputs}

    def of_rows(self, x: Tensor) -> bool:
        """Return whether `x` is of the rows, or was made of them."""
        return bool(self.known.get(x, False))

    def of_no_rows(self, x: Any) -> bool:
        """Return whether `x` is a tensor that was made in the trial, of none of the rows."""
        return isinstance(x, Tensor) and self.known.get(x) is False

    def leaves_behind(self, shown: list[Any]) -> bool:
        """Return whether any of these is, or comes of, a leaf that the call made.

        Nobody outside would know that its gradient is of rows, and at which scale.
        """
        todo = [x for x in shown if isinstance(x, Tensor) and x.requires_grad]
        nodes, seen = [x.grad_fn for x in todo], set()
        while nodes:
            node = nodes.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            todo += [leaf for leaf in [getattr(node, "variable", None)] if leaf is not None]
            nodes += [following for following, _ in node.next_functions]
        return any(
            x.is_leaf and id(x) not in self.given and (x in self.known or self._lies_in_rows(x))
            for x in todo
        )

    def _is_passing(self, x: Tensor) -> bool:
        """Return whether a tensor is another at another call: drawn, or a number from outside."""
        return bool(self.passing.get(x, x not in self.known and x.numel() == 1))

    def _lies_in_rows(self, x: Tensor) -> bool:
        return self.memory.get(memory_of(x), False)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.is_inference_mode_enabled() and isinstance(func, OpOverload):
            # there an operator that is made of others comes as one, whatever these decide
            parts = parts_of(self, func, *args, **(kwargs or {}))
            if parts is not NotImplemented:
                return parts
        tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor)]
        for x in tensors:
            if (
                x not in self.known
                and type(x) not in PLAIN_KINDS
                and (key := memory_of(x)) in self.memory
            ):
                self.known[x] = self.memory[key]
        # a buffer may hold what was written into a view of it
        tainted = any(self.known.get(x, False) or self.flow.sources(x) for x in tensors)
        passing = is_random(func) or any(map(self._is_passing, tensors))
        if (tainted or passing) and tells_values(func):
            raise Refused(DECIDES if tainted else PASSING)
        if any(x.requires_grad and not x.is_leaf and x not in self.known for x in tensors):
            raise Refused("it uses a tensor with a gradient from outside")
        out = func(*args, **(kwargs or {}))
        self.flow.note(func, tensors, out)
        for x in tree_flatten(out)[0]:
            if isinstance(x, Tensor):
                self.known[x] = tainted or self.known.get(x, False)
                self.passing[x] = passing
                if tainted and (x.is_floating_point() or x.is_complex()):
                    self.dtypes.add(x.dtype)
                key = memory_of(x)
                self.memory[key] = tainted or self.memory.get(key, False)
        return out
