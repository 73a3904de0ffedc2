"""Calls of functions that write: rank 0's for real, whole or not at all, the others' to nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from torch.utils._pytree import tree_leaves, tree_map

from autoddp.comm.outcome import Outcome
from autoddp.effects import paths
from autoddp.effects.atomic import Draft, renamed
from autoddp.effects.engine import Effects, Mode
from autoddp.effects.mirrored_io import Writers
from autoddp.effects.writers import CHECKPOINT, Writer
from autoddp.patching import Call
from autoddp.view.sharded_tensor import Partial, ShardedTensor, full


class WriteCall:
    """A call of a function of the table of writers, which can be made with another path."""

    writers = Writers()

    def __init__(self, call: Call, row: Writer) -> None:
        self._call, self.row = call, row
        self.site = row.target.replace(":", ".")
        self._named = {**call.kwargs, **call.named}
        named = row.argument in call.named
        if row.position is not None and not named and len(call.args) > row.position:
            self._named[row.argument] = call.args[row.position]
        given = self._named.get(row.argument)
        self._bytes = isinstance(given, bytes)
        self.path = path_of(given)

    @property
    def keeps(self) -> bool:
        """Return whether the call adds to what the file holds."""
        more = {**self._named.get("kwargs", {}), **self._named.get("params", {}), **self._named}
        mode = str(more.get("mode", self.row.mode))
        return not {"a", "+"}.isdisjoint(mode) or bool(more.get("append"))

    def plain(self) -> Any:
        """Make the call as it was made."""
        return self._call.plain()

    def to(self, path: str) -> Any:
        """Make the call with another path; what it returns names the user's own."""
        at: Any = os.fsencode(path) if self._bytes else path
        call, name, position = self._call, self.row.argument, self.row.position
        if name in call.named:
            result = call.changed(**{name: at})
        elif position is None or len(call.args) <= position:
            result = call.wrapped(*call.args, **{**call.kwargs, name: at})
        else:
            args = (*call.args[:position], at, *call.args[position + 1 :])
            result = call.wrapped(*args, **call.kwargs)
        return self._users(result, path)

    def _users(self, result: Any, path: str) -> Any:
        if isinstance(result, str) and self.path is not None:
            return result.replace(path, self.path)
        if type(result) in (list, tuple):
            return type(result)(self._users(part, path) for part in result)
        return result


class WriteCalls:
    """The calls that write, made by all ranks at the same time: to gather rows may take them all.

    Then rank 0 puts the file in place, once nobody can still be reading the old one.
    """

    def __init__(self, effects: Effects) -> None:
        self._effects = effects

    def write(self, call: Call, row: Writer) -> Any:
        """Make the call, once for all ranks; what it raises on rank 0, it raises on all."""
        writing = WriteCall(call, row)
        path = writing.path
        mode = self._effects.touch(path)
        if mode is Mode.PASS_THROUGH or path is None:
            return call.plain()
        if mode is Mode.SYNCED and row is CHECKPOINT:
            for check in self._effects.before_save:
                check()
        if self._effects.mode() is Mode.SYNCED and not row.blind:  # pickling gathers by itself
            writing = WriteCall(Call(call.wrapped, *whole((call.args, call.kwargs))), row)
        if row.folder and mode is Mode.SYNCED:
            # from here on nobody reads the old folder any more
            self._effects.do_on_rank0(writing.site, lambda: None)
        writing.writers = self._effects.writers(path, mode is Mode.SYNCED)
        if self._effects.rank not in writing.writers.ranks:
            return self._go_along(writing, path, mode)
        return self._fill(writing, mode) if row.folder else self._put(writing, path, mode)

    def _put(self, writing: WriteCall, path: str, mode: Mode) -> Any:
        """Write on rank 0, and put the file in place."""
        with self._effects.context.internal():
            draft = Draft(path, keep=writing.keeps)

        def finish() -> list[Any]:
            value = outcome.unwrap()
            draft.put()
            made = [os.path.abspath(target) for target in draft.targets]
            return [os.path.abspath(path), made, _plain(value)]

        try:
            with self._effects.context.internal():
                outcome = Outcome.of(lambda: draft.write(writing.to))
            self._tell(writing, outcome, finish, mode)
        finally:
            with self._effects.context.internal():
                draft.discard()
        return outcome.value

    def _fill(self, writing: WriteCall, mode: Mode) -> Any:
        """Fill the folder on rank 0."""
        with self._effects.context.internal():
            outcome = Outcome.of(writing.plain)

        def finish() -> list[Any]:
            path = os.path.abspath(writing.path or "")
            return [path, [path], _plain(outcome.unwrap())]

        self._tell(writing, outcome, finish, mode)
        return outcome.value

    def _tell(
        self,
        writing: WriteCall,
        outcome: Outcome,
        finish: Callable[[], Any],
        mode: Mode,
    ) -> None:
        """Finish on rank 0 once all have written."""
        if mode is Mode.SYNCED:
            if outcome.error is not None:
                self._throw_away(writing)  # others still gather, which needs this rank
            self._effects.do_on_rank0(writing.site, finish, list, writing.writers)
        else:
            with self._effects.context.internal():
                finish()

    def _go_along(self, writing: WriteCall, path: str, mode: Mode) -> Any:
        """Write to nothing on a rank above 0, and learn what became of rank 0's file."""
        if writing.row.folder and mode is Mode.UNSYNCED:
            return self._fill_own(writing, path)
        if mode is Mode.UNSYNCED and self._has_no_folder(path):
            outcome = self._fail(writing, path)
        else:
            outcome = self._throw_away(writing, keep=mode is Mode.UNSYNCED)
        if mode is Mode.SYNCED:
            theirs, made, value = self._effects.do_on_rank0(
                writing.site, writing.plain, None, writing.writers
            )
            self._follow(os.path.abspath(path), theirs, made)
            if value:
                outcome.unwrap()
                return value[0]
        return outcome.unwrap()

    def _has_no_folder(self, path: str) -> bool:
        return not self._effects.overlay.find(os.path.dirname(path) or os.curdir).folder

    def _fail(self, writing: WriteCall, path: str) -> Outcome:
        """Make the call in a folder that is missing here, too: it words the error itself."""
        with self._effects.context.internal():
            missing = self._effects.overlay.new(path)
            outcome = Outcome.of(lambda: writing.to(f"{missing}/{os.path.basename(path)}"))
        if outcome.error is None:
            return outcome
        return Outcome(error=renamed(outcome.error, missing, os.path.dirname(path)))

    def _fill_own(self, writing: WriteCall, path: str) -> Any:
        """Fill the folder for this rank alone."""
        overlay = self._effects.overlay
        if not overlay.find(path).there:
            os.makedirs(path)
        with self._effects.context.internal():
            return writing.to(overlay.room(path))

    def _follow(self, path: str, theirs: str, made: list[str]) -> None:
        """Have this rank find what rank 0 has made, also under a name that tells ranks apart."""
        overlay = self._effects.overlay
        with self._effects.context.internal():
            for name in (path, *made):
                overlay.drop(paths.real(name, True))
            for name in made if path != theirs else ():  # numpy adds a suffix
                overlay.alias(paths.real(path + name.removeprefix(theirs), True), name)

    def _throw_away(self, writing: WriteCall, keep: bool = False) -> Outcome:
        """Make the call and delete the file, unless this rank may read it before rank 0 writes."""
        there = self._effects.found(writing.path or "") if writing.keeps else ""
        there = there if paths.is_file(there) else ""
        with self._effects.context.internal():
            if writing.row.blind and not keep:
                return Outcome.of(lambda: writing.to(os.devnull))
            path, overlay = writing.path or "", self._effects.overlay
            at = overlay.new(path)  # its name decides the format
            if there:
                paths.copy(there, at)
            outcome = Outcome.of(lambda: writing.to(at))
        if keep:
            overlay.lay(overlay.find(path).name, at)
        else:
            paths.remove(os.path.dirname(at))
        return outcome


def whole(data: Any) -> Any:
    """Return `data` with all rows gathered; all ranks take part, before rank 0 goes its own way."""
    if not any(isinstance(leaf, (ShardedTensor, Partial)) for leaf in tree_leaves(data)):
        return data
    return tree_map(full, data)


def path_of(given: Any) -> str | None:
    """Return the path that an argument names, None for an open file (or an ExcelWriter)."""
    names = isinstance(given, (str, bytes, os.PathLike)) and not hasattr(given, "close")
    return os.fsdecode(given) if names else None


def _plain(value: Any) -> list[Any]:
    """Return a list of `value` if that can travel, else an empty one.

    cv2 returns False, which travels, if it has not written.
    """
    return [value] if isinstance(value, (bool, int, float, str)) else []
