"""Calls of functions that write files: rank 0 writes for real and atomically, others discard."""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from autoddp.comm.outcome import Outcome
from autoddp.effects import overlay, paths
from autoddp.effects.atomic import Draft
from autoddp.effects.engine import Effects, Writers
from autoddp.effects.ownership import whose
from autoddp.effects.who_acts import Mode
from autoddp.effects.writers import Writer
from autoddp.errors import Disagreement, RankEnded
from autoddp.patching import Call
from autoddp.view.sharded_tensor import WRITTEN

# arguments that a writer reads without gathering, beside those of classes in `WRITTEN`
KNOWN = {torch.Tensor, torch.nn.Parameter, str, int, float, bool, bytes, type(None)}


class WriteCall:
    """A call of a function in the table of writers, which can be made with another path."""

    def __init__(self, call: Call, row: Writer) -> None:
        self._call, self.row = call, row
        self.site = row.target.replace(":", ".").replace(".__init__", "").replace(".__new__", "")
        self._named = {**call.kwargs, **call.named}
        bound = row.argument in call.named
        if row.position is not None and not bound and len(call.args) > row.position:
            self._named[row.argument] = call.args[row.position]
        value = self._named.get(row.argument)
        self._bytes = isinstance(value, bytes)
        self.path = path_of(value) or ""

    @property
    def mode(self) -> str:
        """Return the mode in which the call writes, "a" if it appends to the file."""
        more = {**self._named.get("kwargs", {}), **self._named.get("params", {}), **self._named}
        return "a" if more.get("append") else str(more.get("mode", self.row.mode))

    def to(self, path: str) -> Any:
        """Make the call with another path."""
        at: Any = os.fsencode(path) if self._bytes else path
        call, name, position = self._call, self.row.argument, self.row.position
        if name in call.named:
            return call.changed(**{name: at})
        if position is None or len(call.args) <= position:
            return call.wrapped(*call.args, **{**call.kwargs, name: at})
        args = (*call.args[:position], at, *call.args[position + 1 :])
        return call.wrapped(*args, **call.kwargs)


class WriteCalls:
    """Calls that write a file. All ranks make them, since gathering rows needs all ranks.

    Rank 0 then moves the file into place, when no rank can still be reading the old one.
    """

    def __init__(self, effects: Effects) -> None:
        self._effects = effects

    def write(self, call: Call, row: Writer) -> Any:
        """Write once for all ranks; all ranks raise rank 0's error."""
        effects, writing = self._effects, WriteCall(call, row)
        mode = effects.mode(writing.path, by=whose)
        if mode is Mode.PASS_THROUGH or not writing.path or writing.mode == "a":
            return call.plain()  # functions that append use the patched `open`
        agreed = mode is Mode.SYNCED
        for check in effects.before_save if agreed and row.blind else ():
            check()
        writers = effects.writers(writing.path, agreed)
        real = effects.rank in writers.ranks
        if not agreed:
            return self._alone(writing, real)
        given = call.args, call.kwargs
        alone = row.silent and all(
            type(x) in KNOWN or type(x) in WRITTEN for x in tree_leaves(given)
        )
        # other ranks call most writers, whose result is theirs: they need all of the tensors
        with effects.saving(real) if row.blind or alone else nullcontext():
            if not row.blind:  # pickling gathers
                writing = WriteCall(Call(call.wrapped, *whole(given)), row)
                # wait until no rank reads the old content, as a folder is written in place
                effects.do_on_rank0(writing.site, lambda: None)
            return self._together(writing, writers, real, alone)

    def _together(self, writing: WriteCall, writers: Writers, real: bool, alone: bool) -> Any:
        """Write on rank 0, and move the file into place once all ranks have made the call.

        With `alone`, other ranks do not make it, as it gathers nothing and returns nothing.
        """
        effects = self._effects

        def finish() -> list[Any]:
            outcome.unwrap()
            draft.put()
            return [outcome.value] if isinstance(outcome.value, bool) else []  # returned by cv2

        with effects.context.internal(), Draft(writing.path) as draft:
            written = Outcome.of(lambda: draft.write(writing.to)) if real else None
            outcome = written or (Outcome() if alone else self._discard(writing))
            if isinstance(outcome.error, (Disagreement, RankEnded)):
                outcome.unwrap()  # raised on all ranks, of which none waits for another
            if real and outcome.error is not None and not alone:
                self._discard(writing)  # other ranks still gather, which needs this rank
            value = effects.do_on_rank0(writing.site, finish, writers=writers)
            if not real:
                effects.overlay.drop(writing.path)
        result = outcome.unwrap()
        return value[0] if value else result

    def _discard(self, writing: WriteCall) -> Outcome:
        """Make the call, and delete the file that it has written."""
        effects = self._effects
        with effects.context.internal():
            if writing.row.blind:
                return Outcome.of(lambda: writing.to(os.devnull))
            at = effects.overlay.new(writing.path)  # its name decides the format
            outcome = Outcome.of(lambda: writing.to(at))
        paths.remove(os.path.dirname(at))
        return outcome

    def _alone(self, writing: WriteCall, real: bool) -> Any:
        """Write without waiting for other ranks: rank 0 the file, others to their overlay."""
        private, path = self._effects.overlay, writing.path
        with self._effects.context.internal(), Draft(path) as draft:
            if not real and paths.is_folder(path):
                return self._discard(writing).unwrap()
            if not real:
                return overlay.named(lambda: writing.to(private.to_write(path, False)), path)
            result = draft.write(writing.to)
            draft.put()
        return result


def whole(data: Any) -> Any:
    """Return `data` with all sharded tensors gathered; all ranks must call this."""
    if not any(type(leaf) in WRITTEN for leaf in tree_leaves(data)):
        return data
    return tree_map(lambda x: WRITTEN[type(x)](x) if type(x) in WRITTEN else x, data)


def path_of(value: Any) -> str | None:
    """Return the path that an argument names, None for an open file (or an ExcelWriter)."""
    names = isinstance(value, (str, bytes, os.PathLike)) and not hasattr(value, "close")
    return os.fsdecode(value) if names else None
