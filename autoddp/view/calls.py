"""The calls of modules: each runs on this rank's rows, by its parts, or whole.

Only a call that was proven row-wise is split. A call that was not hands its rows on to its parts,
which are tried in turn; whatever is not proven in the end gathers. So it is exact in any case.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from autoddp.comm.context import Code
from autoddp.errors import LostGradient
from autoddp.report import users_line
from autoddp.view.boundaries import all_rows
from autoddp.view.cuts import Cuts
from autoddp.view.entered import Entered
from autoddp.view.family import version
from autoddp.view.proof.flow import memory_of
from autoddp.view.proof.reach import Reach, reach_of
from autoddp.view.proof.snapshot import Snapshot
from autoddp.view.proof.trial import TrialCall
from autoddp.view.proof.verdict import Verdict
from autoddp.view.proof.verdicts import Verdicts, mine
from autoddp.view.rows import Partial, Rows, full, split
from autoddp.view.state import Region, View
from autoddp.view.wording import WRONG, as_whole, retell_of
from autoddp.view.work import WHOLE

Run = Callable[..., Any]
LISTS = (list, tuple)
SAMPLES = 3  # tensors in a list that are taken for samples; two may be a pair of batches
GUESSES = 3  # sizes that may be the batch, where no argument is held by rows


class Calls:
    """The calls of modules on one rank, and what was proven of them."""

    def __init__(self, view: View, left_out: tuple[str, ...] = ()) -> None:
        self.view = view
        self.takes_samples: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self.depth = 0  # above 0 inside a call that runs by its parts, or whole
        self.verdicts = Verdicts(view, left_out)

    def call(
        self, module: nn.Module, run: Run, args: Any, kwargs: dict[str, Any], parts: bool = True
    ) -> Any:
        """Return what `run(*args, **kwargs)` gives, where `run` calls `module`.

        Without `parts` a call that is not row-wise runs whole: what is recomputed in backward must
        be what was computed.
        """
        self.verdicts.meet(module)
        reach = reach_of(args, kwargs)
        tensors = [x for x in reach.leaves if split(x) or (isinstance(x, Tensor) and x.dim())]
        lead = next((x for x in tensors if split(x)), None)
        if lead is None and (self.depth or not tensors or self._listed(module, args)):
            unread = any(isinstance(x, Partial) for x in reach.leaves)
            return self.whole(run, reach) if unread else run(*args, **kwargs)
        if reach.refused:
            return run(*args, **kwargs)
        if any(not split(x) and x.layout is not torch.strided for x in tensors):
            return self.whole(run, reach)
        handed: TrialCall | None = None
        for given in self._readings(lead, reach):
            verdict = self.verdicts.of(module, given)
            if not verdict.reason:
                return self._split(module, run, given, verdict)
            if handed is None or given.holders > handed.holders:
                handed = given  # most arguments agree on this size
        if not parts:
            with self.view.context.within(Code.PLAIN):
                return self.whole(run, reach)
        if handed is None:
            return self.whole(run, reach)
        if lead is None and _of_samples(args):
            self.takes_samples.add(module)  # its parts are called as if by the script
            return run(*args, **kwargs)
        return self._hand_on(_uncompiled(module, run), handed, lead)

    def on_wholes(self, run: Run, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run a call whole on every rank, with what is inside, whatever it is."""
        reach = reach_of(args, kwargs)
        if reach.refused or not any(isinstance(x, (Rows, Partial)) for x in reach.leaves):
            return run(*args, **kwargs)
        with self.view.context.within(Code.PLAIN):
            return self.whole(run, reach)

    def _listed(self, module: nn.Module, args: Any) -> bool:
        """Return whether a call is given samples one by one, as this module is known to be."""
        return bool(args) and isinstance(args[0], LISTS) and module in self.takes_samples

    def whole(self, run: Run, reach: Reach, of: Callable[[Any], Any] = full) -> Any:
        """Run the call whole on every rank: few rows, or no batch in sight; no guessing inside."""
        with self._deeper(), reach.filled([of(x) for x in reach.leaves]) as values:
            return reach.call(run, values)

    def _hand_on(self, run: Run, given: TrialCall, lead: Rows | None) -> Any:
        """Run a call that is not row-wise as one by its parts, which may be.

        What an object holds is left to its class, and a whole tensor beside rows is taken for a
        batch only if it lies as they do.
        """
        reach, cuts = given.reach, given.cuts
        ats = [
            None if k in reach.inside or (lead is not None and at != lead.at) else at
            for k, at in enumerate(given.ats)
        ]
        made = [
            x if at is None or split(x) else Rows(counting(mine(x, at, cuts)), cuts, at)
            for x, at in zip(reach.leaves, ats, strict=True)
        ]
        with (
            self._deeper(),
            reach.filled(made) as values,
            written_back(reach.leaves, made, ats, cuts),
        ):
            return reach.call(run, values)

    def _split(self, module: nn.Module, run: Run, given: TrialCall, verdict: Verdict) -> Any:
        """Run the call on this rank's rows; an error has the words that it has in one process."""
        try:
            return self._by_rows(module, run, given, verdict)
        except WRONG as error:
            if not (state := Snapshot(module)).refused:
                retell_of(error, lambda: self._on_copies(run, given.reach, state))
            raise

    def _on_copies(self, run: Run, reach: Reach, state: Snapshot) -> None:
        """Run a call that has failed on as many rows as the whole has; nothing is left of it."""
        try:
            with self.view.context.within(Code.PLAIN), self.view.trial():
                self.whole(run, reach, as_whole)
        finally:
            state.put_back()

    def _by_rows(self, module: nn.Module, run: Run, given: TrialCall, verdict: Verdict) -> Any:
        """Run the call on this rank's rows, as plain tensors.

        What comes back, and what the call leaves in its arguments, is held by rows.
        """
        reach, ats, cuts = given.reach, given.ats, given.cuts
        leaves = reach.leaves
        local = [mine(x, at, cuts) for x, at in zip(leaves, ats, strict=True)]
        local = [
            m if m is x or split(x) else counting(m) for x, m in zip(leaves, local, strict=True)
        ]
        at = next(a for a in ats if a is not None)
        with reach.filled(local) as values, written_back(leaves, local, ats, cuts):
            with self.enter(Region(cuts, at, verdict.draws, verdict.places)):
                out = reach.call(run, values)
            if isinstance(out, Tensor) and not reach.spaces and verdict.outs[0] is not None:
                return _rows(out, cuts, verdict.outs[0], module)
            reach.put_back()
            after = reach.after(out)
            if after.layout != verdict.layout:
                raise LostGradient(_changed(module))
            known = {id(m): x for m, x in zip(local, leaves, strict=True)}
            for o, a in zip(after.leaves, verdict.outs, strict=True):
                if a is not None and id(o) not in known:
                    known[id(o)] = _rows(o, cuts, a, module)
            return after.fill([known.get(id(o), o) for o in after.leaves])[0]

    def enter(self, region: Region, drawn: int = 0) -> Entered:
        """Run a split call in here, from its first draw or, to recompute it, from a later one."""
        return Entered(self.view, region, drawn)

    @contextmanager
    def _deeper(self) -> Iterator[None]:
        self.depth += 1
        work = self.view.work.turn(WHOLE)
        try:
            yield
        finally:
            self.view.work.turn(work)
            self.depth -= 1

    def _readings(self, lead: Rows | None, reach: Reach) -> Iterator[TrialCall]:
        """Yield what may be the batch, where each rank has a row of it.

        Beside rows, whole tensors of their size are taken for batches, too, or else for none. A
        batch that was cut by hand is a size of the first argument, unless the first of these is
        below the number of ranks, as for a batch of one.
        """
        if lead is not None:
            guesses = [lead.cuts]
        else:
            shown = (
                x
                for k, x in enumerate(reach.leaves)
                if isinstance(x, Tensor) and k not in reach.inside
            )
            first = next((x for x in shown if x.dim()), None)
            sizes = () if first is None or first.shape[0] < self.view.group.size else first.shape
            guesses = [self.view.cut(size) for size in dict.fromkeys(sizes)][:GUESSES]
        for cuts in guesses:
            if cuts.smallest:
                ats = [batch_dim(x, cuts) for x in reach.leaves]
                yield TrialCall(reach, ats, cuts)
                known = [at if split(x) else None for x, at in zip(reach.leaves, ats, strict=True)]
                if lead is not None and known != ats:
                    yield TrialCall(reach, known, cuts)


def _uncompiled(module: nn.Module, run: Run) -> Run:
    """Return what calls a compiled module's original, `run` for a module that is not compiled.

    So its parts are asked one by one, and no compiler knows rows.
    """
    if isinstance(original := getattr(module, "_orig_mod", None), nn.Module):
        return original._call_impl
    return module._call_impl if module._compiled_call_impl is not None else run


def _of_samples(args: Any) -> bool:
    """Return whether a call is given samples one by one, of which the module makes the batch."""
    first = args[0] if args else None
    return isinstance(first, LISTS) and sum(isinstance(x, Tensor) for x in first) >= SAMPLES


def batch_dim(x: Any, cuts: Cuts) -> int | None:
    """Return the dimension of an argument that holds the batch, None if none does.

    It is known of rows, else the first of that size.
    """
    if split(x):
        return x.at if x.cuts is cuts else None
    if not isinstance(x, Tensor) or not x.dim():
        return None
    if cuts.turns > 1:
        return None  # its rows would be copies: what a module writes into them would be lost
    return next((d for d, size in enumerate(x.shape) if size == cuts.total), None)


NOTHING = nullcontext()


def written_back(
    leaves: list[Any], made: list[Any], ats: list[int | None], cuts: Cuts
) -> AbstractContextManager[None]:
    """Bring `leaves` up to date if the call in here writes into `made`, which it gets of them."""
    wholes = [
        (x, at, m._local if split(m) else m)
        for x, m, at in zip(leaves, made, ats, strict=True)
        if at is not None and not split(x) and type(x) is not Partial and isinstance(x, Tensor)
    ]
    lent = [x for x in leaves if split(x) and x.family.lent]
    return _watched(wholes, lent, cuts) if wholes or lent else NOTHING


@contextmanager
def _watched(
    wholes: list[tuple[Tensor, int, Tensor]], lent: list[Rows], cuts: Cuts
) -> Iterator[None]:
    watched = [m for _, _, m in wholes] + [x.local for x in lent]  # up to date, before it is noted
    before = [version(m) for m in watched]
    yield
    written = [m.is_inference() or m._version != v for m, v in zip(watched, before, strict=True)]
    for (x, at, m), new in zip(wholes, written, strict=False):
        if new:
            with torch.no_grad():
                # where m is a view of x, the write has been counted, and may be so only once
                counted = memory_of(m) == memory_of(x)
                (x.data if counted else x).copy_(all_rows(m.detach(), cuts, at))
    for x, new in zip(lent, written[len(wholes) :], strict=True):
        if new:
            x.family.refresh()


def counting(x: Any) -> Any:
    """Copy what inference_mode() made, which counts no writes; return all else as it is."""
    if not isinstance(x, Tensor) or not x.is_inference():
        return x
    with torch.inference_mode(False):
        return x.clone()


def _rows(out: Any, cuts: Cuts, at: int, module: nn.Module) -> Tensor:
    """Return what a split call gave, by rows, or whole if it is of a class of its own."""
    if not isinstance(out, Tensor) or out.dim() <= at or out.shape[at] != cuts.mine:
        raise LostGradient(_changed(module))
    kind = type(out)
    if kind is Tensor or kind is nn.Parameter:
        return Rows(out, cuts, at)
    whole: Tensor = Rows(out.as_subclass(Tensor), cuts, at).full().as_subclass(kind)
    vars(whole).update(vars(out))
    return whole


def _changed(module: nn.Module) -> str:
    return (
        f"{type(module).__name__} at {users_line()} returned other outputs than when it was proven "
        "row-wise; run with --disable modules, which computes it whole on every rank"
    )
