"""The verdicts on calls of modules: what was proven of them, and agreed between ranks."""

from __future__ import annotations

import gc
import weakref
from typing import Any
from zlib import crc32

import torch
from torch import Tensor, nn

from autoddp import torch_internals
from autoddp.report import users_line
from autoddp.view.boundaries import lend, part
from autoddp.view.cuts import Cuts
from autoddp.view.names import LeftOut
from autoddp.view.proof.proofs import DECIDES_BY_ROWS, NO_MEMORY, prove
from autoddp.view.proof.settings import Settings
from autoddp.view.proof.trial import Trial, TrialCall
from autoddp.view.proof.verdict import Verdict
from autoddp.view.rows import full, split
from autoddp.view.state import View

Key = tuple[Any, ...]
MOST = 8  # kinds of call of one module that are known; more are handed on to its parts
OFTEN = 64  # calls after which a new kind may take the place of the oldest
ENOUGH = 15  # rows to be tried where more do not fit: the ends of these do not touch
TWICE = 2  # refusals of a kind of call, under different settings, after which it is left at that
AGAIN = frozenset(10**k for k in range(2, 9))  # calls at which a proof is made once more
CHANGED = (
    "it was row-wise when first called, and is not any more: it runs by its parts from here on, "
    "but numbers since it changed may not be those of one process; --disable modules computes "
    "every module whole"
)


class Proofs:
    """The knowledge of one module: verdicts by kind of call, the oldest first."""

    def __init__(self) -> None:
        self.verdicts: dict[Key, Verdict] = {}
        self.unsure: dict[Key, int] = {}  # how often its rows were alike
        self.refused: dict[Key, int] = {}  # how often it was not row-wise, whatever was set on it
        self.uses: dict[Key, int] = {}  # calls that a verdict served
        self.calls = 0  # since the latest proof

    def due(self, key: Key) -> str:
        """Return why this kind of call is not to be tried now, or nothing."""
        asked = self.unsure.get(key, 0)
        if asked and asked & (asked - 1):  # at the first call, and the second, fourth, eighth ...
            self.unsure[key] += 1
            return "its batches have proven nothing so far"
        if self.refused.get(key[:-1], 0) >= TWICE:
            return "it was not row-wise with other settings"
        if len(self.verdicts) >= MOST and self.calls < OFTEN:
            return "it is called in too many ways"
        return ""

    def again(self, key: Key) -> bool:
        """Count a use of a verdict; return whether it is time to see if the proof still holds."""
        self.uses[key] = self.uses.get(key, 0) + 1
        return self.uses[key] in AGAIN

    def keep(self, key: Key, verdict: Verdict) -> None:
        """Keep a verdict, for the oldest where there are many; an unsure one is only counted."""
        self.calls = 0
        if not verdict.sure:
            self.unsure[key] = self.unsure.get(key, 0) + 1
            return
        if verdict.reason:
            self.refused[key[:-1]] = self.refused.get(key[:-1], 0) + 1
        while len(self.verdicts) >= MOST:
            oldest = next(iter(self.verdicts))
            del self.verdicts[oldest]
            self.uses.pop(oldest, None)
        self.verdicts[key] = verdict


class Verdicts:
    """The proofs of each module, one for each mode, setting and layout of arguments."""

    def __init__(self, view: View, left_out: tuple[str, ...] = ()) -> None:
        self.view, self.left_out = view, LeftOut(left_out)
        self.hooks = 0  # counts registrations of hooks; what was looked up before is stale then
        self.settings = Settings()
        self.proven: weakref.WeakKeyDictionary[nn.Module, Proofs] = weakref.WeakKeyDictionary()
        self._hooked: weakref.WeakKeyDictionary[nn.Module, tuple[int, bool]] = (
            weakref.WeakKeyDictionary()
        )

    def meet(self, module: nn.Module) -> None:
        """Note a module at its first call, which shows the order of its parameters."""
        if module not in self.proven:
            self.proven[module] = Proofs()
            self.view.order.note(nn.Module.parameters(module))
            self.view.met.append(weakref.ref(module))

    def of(self, module: nn.Module, given: TrialCall) -> Verdict:
        """Return the verdict on this call, proven now if it is the first of its kind."""
        if self._is_hooked(module):
            return Verdict(reason="hooks on it see the batch")
        if self.left_out.covers(module):
            return Verdict(reason="--disable modules:NAME names it, or a part of it")
        key = (*_key(module, given, self.settings), self.settings.of(module))
        known = self.proven[module]
        known.calls += 1
        found = known.verdicts.get(key)
        if found is not None and (found.reason or not known.again(key)):
            return _of_these_rows(found, given.cuts)
        reason = "" if found is not None else known.due(key)
        if reason:
            return Verdict(reason=reason)
        verdict = self._agreed(self._prove(module, given))
        name = type(module).__name__
        if found is not None and (not verdict.reason or not verdict.sure):
            return _of_these_rows(found, given.cuts)
        if found is not None:
            self.view.report.doubt(
                "whole", f"{name} at {users_line()}", f"{CHANGED} ({verdict.reason})"
            )
        known.keep(key, verdict)
        verdict = _of_these_rows(verdict, given.cuts)
        what = verdict.reason or f"{given.cuts.mine} of {given.cuts.total} rows here"
        self.view.report.add(
            "whole" if verdict.reason else "split", f"{name} at {users_line()}", what
        )
        return verdict

    def _prove(self, module: nn.Module, given: TrialCall) -> Verdict:
        """Try the call on this rank's rows.

        Where a rank has one row only, that proves nothing: then on all rows.
        """
        cuts = given.cuts
        alone = cuts.smallest == 1
        tried = [
            full(x if at is None else full(x) if alone else mine(x, at, cuts))
            for x, at in zip(given.reach.leaves, given.ats, strict=True)
        ]
        size, start = (cuts.total, cuts.start) if alone else (cuts.mine, 0)
        most = cuts.mine + 2 if alone else ENOUGH
        verdict = self._tried(module, given, tried, (0, size), start)
        if verdict.reason == NO_MEMORY and size > most:
            empty_caches(tried)
            where = f"{type(module).__name__} at {users_line()}"
            self.view.report.say_once(
                "memory", where, f"tried on {most} rows, as {size} do not fit in memory"
            )
            first = min(start, size - most)
            verdict = self._tried(module, given, tried, (first, most), start - first)
        return verdict

    def _tried(
        self,
        module: nn.Module,
        given: TrialCall,
        leaves: list[Any],
        rows: tuple[int, int],
        start: int,
    ) -> Verdict:
        """Try the call on some rows of `leaves`.

        Args:
            module: The module that is called.
            given: The call.
            leaves: The arguments.
            rows: The first row, and how many there are.
            start: Where this rank's rows start in them, if some rank has only one.
        """
        first, size = rows
        cut = [
            x if at is None else x.narrow(at, first, size)
            for x, at in zip(leaves, given.ats, strict=True)
        ]
        parts = [(start, given.cuts.mine)] if given.cuts.smallest == 1 else []
        target = getattr(module, "_orig_mod", module)
        return prove(Trial(self.view, target, given, cut, size, parts), target)

    def _agreed(self, verdict: Verdict) -> Verdict:
        """Agree on a verdict: all ranks must have found the same."""
        group = self.view.group
        vote = 0 if verdict.reason and verdict.sure else 1 if verdict.reason else 2
        lowest = int(
            group.all_reduce(torch.tensor([vote], device="cpu"), torch.distributed.ReduceOp.MIN)
        )
        if lowest == 2:
            places = (at for _, at in verdict.places)
            outs = [-1 if at is None else at for at in (*verdict.outs, *places)]
            rules = crc32(repr(verdict.decisions.terms).encode())
            noted = torch.tensor(
                [len(outs), int(verdict.draws), hash(tuple(outs)) % 2**31, rules], device="cpu"
            )
            if not group.spread(noted).any():
                return verdict
            lowest = 0
        if vote == lowest:
            return verdict
        return Verdict(reason="another rank found that it is not row-wise", sure=lowest == 0)

    def _is_hooked(self, module: nn.Module) -> bool:
        """Return whether a hook sits on the module or a part of it: it would see rows only."""
        if any(torch_internals.GLOBAL_HOOKS):
            return True
        known = self._hooked.get(module)
        if known is None or known[0] != self.hooks:
            known = self._hooked[module] = self.hooks, any(map(_has_hooks, module.modules()))
        return known[1]


def _of_these_rows(verdict: Verdict, cuts: Cuts) -> Verdict:
    """Return the verdict on so many rows: what is decided by their number may be another thing."""
    return verdict if verdict.decisions.alike(cuts) else Verdict(reason=DECIDES_BY_ROWS)


def empty_caches(tensors: list[Any]) -> None:
    """Give what a trial has left back to the devices of these tensors."""
    gc.collect()  # frames of what was raised hold each other
    for device in {x.device.type for x in tensors if isinstance(x, Tensor)} - {"cpu"}:
        getattr(torch.get_device_module(device), "empty_cache", int)()


def mine(x: Any, at: int | None, cuts: Cuts) -> Any:
    """Return an argument as a split call gets it: this rank's rows, or the whole, lent."""
    if at is None:
        return lend(full(x), cuts.view.group)
    return x.local if split(x) else part(full(x), cuts, at)


def hooks_node(module: nn.Module) -> bool:
    """Return whether a backward hook of the old kind is on a module: it hooks its output's node."""
    return bool(module._backward_hooks) and module._is_full_backward_hook is False


def _has_hooks(m: nn.Module) -> bool:
    return bool(
        m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks
    )


def _key(module: nn.Module, given: TrialCall, settings: Settings) -> Key:
    """Return what a proof holds for: mode, layout of the arguments, plain settings among them."""
    leaves = tuple(
        (len(x.whole_shape), x.local.dtype)
        if split(x)
        else (x.dim(), x.dtype)
        if isinstance(x, Tensor)
        else settings.of_argument(x)
        for x in given.reach.leaves
    )
    alone = given.cuts.smallest == 1
    return module.training, alone, tuple(given.ats), leaves, given.reach.layout, _modes()


def _modes() -> tuple[Any, ...]:
    """Return whether gradients are taken, and autocast's dtypes on CPUs and on accelerators."""
    accelerator = torch_internals.accelerator()
    types = ["cpu"] if accelerator is None else ["cpu", accelerator.type]
    low = (torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) for kind in types)
    return torch.is_grad_enabled(), *low
