"""Files are written once, by rank 0; every rank learns how it went, and reads what was written."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, ClassVar

from autoddp.outside.atomic import Draft
from autoddp.outside.effects import Call, Mode, Outward, stands_for
from autoddp.outside.opened import Opened
from autoddp.outside.outcome import Outcome
from autoddp.patching import patch

# Functions that write the file which one of their arguments names, whoever calls them.
WRITERS = (
    "numpy:save",
    "numpy:savez",
    "numpy:savez_compressed",
    "numpy:savetxt",
    "matplotlib.figure:Figure.savefig",
    "torchvision.utils:save_image",
)
_WRITES = frozenset("wax+")
# What these functions call that argument.
PATHS = ("f", "file", "fname", "fp", "filename")


def path_argument(call: dict[str, Any]) -> str | None:
    """The name of the argument that holds the path to write, unless an open file is given."""
    for name in PATHS:
        if name in call:
            return name if isinstance(call[name], (str, os.PathLike)) else None
    return None


class Files(Outward):
    """Rank 0 writes; the others go through the same motions, and learn what became of it."""

    name: ClassVar[str] = "files"

    def setup(self, undo: ExitStack) -> None:
        """Files that are open are muted in a trial, as those opened in it are."""
        super().setup(undo)
        self.opened = Opened(self.effects)
        trials = self.run.view.trials
        trials.append(self.opened.muted)
        undo.callback(trials.remove, self.opened.muted)

    @patch(
        "torch:save",
        "torch.serialization:save",
        why="rank 0 writes the checkpoint, whole or not at all",
    )
    def save_once(self, wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
        """Others pickle too, into nothing: gathering what is held by rows takes all ranks."""
        return self._write(Call(wrapped, args, kwargs))

    @patch(*WRITERS, why="rank 0 writes the file, whole or not at all", optional=True)
    def write_once(self, wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
        """Others write too, to their scratch."""
        return self._write(Call(wrapped, args, kwargs))

    @patch(
        "builtins:open",
        "io:open",
        "bz2:_builtin_open",
        "tarfile:bltn_open",
        why="what the script opens to write is rank 0's file; others read what they wrote",
        optional=True,
        hot=True,
    )
    def open_once(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Others get a file on their scratch, which holds what they write."""
        effects, scratch = self.effects, self.effects.scratch

        @stands_for(original)
        def open(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            writes = not _WRITES.isdisjoint(mode)
            if not (writes or scratch.overlay) or not isinstance(file, (str, bytes, os.PathLike)):
                return original(file, mode, *args, **kwargs)
            if not writes:
                return original(self._found(file), mode, *args, **kwargs)
            what = effects.users()
            if what is Mode.PLAIN:
                return original(file, mode, *args, **kwargs)
            return self.opened.open(what, Call(original, (file, mode, *args), kwargs))

        return open

    def _found(self, file: Any) -> Any:
        """Where this rank reads what it wrote itself."""
        if not self.effects.at_home():
            return file
        with self.effects.own():
            return self.effects.scratch.find(file) or file

    def _write(self, call: Call) -> Any:
        """One call of a function that writes the file which an argument names.

        All ranks call it at the same time, since it may need them all; then rank 0 puts the file
        in place, once nobody can still be reading the old one.
        """
        argument, mode = path_argument(call.named), self.effects.mode()
        if argument is None or mode is Mode.PLAIN:
            return call.plain()
        if mode is Mode.TRIAL:
            return None
        path = os.fspath(call.named[argument])
        if self.rank == 0:
            return self._put(call, argument, path, mode)
        return self._go_along(call, argument, path, mode)

    def _put(self, call: Call, argument: str, path: str, mode: Mode) -> Any:
        """Rank 0 writes, and puts the file in place."""
        effects, draft = self.effects, Draft(path)

        def finish() -> str:
            outcome.unwrap()
            draft.put()
            return os.path.abspath(path)

        try:
            with effects.own():
                outcome = Outcome.of(lambda: draft.write(lambda at: call.changed(**{argument: at})))
            if mode is Mode.AGREED:
                if outcome.error is not None:
                    self._throw_away(call, argument, path)  # others still gather: they need us
                effects.change(call.name, finish, told=str)
            else:
                with effects.own():
                    finish()
        finally:
            draft.discard()
        return outcome.value

    def _go_along(self, call: Call, argument: str, path: str, mode: Mode) -> Any:
        """Another rank writes to nothing, and learns what became of rank 0's file."""
        outcome = self._throw_away(call, argument, path)
        if mode is Mode.AGREED:
            theirs = self.effects.change(call.name, call.plain)
            scratch = self.effects.scratch
            with self.effects.own():
                scratch.drop(scratch.key(path))
                if os.path.abspath(path) != theirs:
                    scratch.lay(scratch.key(path), theirs)  # a name that tells ranks apart
        return outcome.unwrap()

    def _throw_away(self, call: Call, argument: str, path: str) -> Outcome:
        """Make the call, and leave no file."""
        with self.effects.own():
            if call.name == "torch.serialization.save":
                return Outcome.of(lambda: call.changed(**{argument: os.devnull}))
            at = self.effects.scratch.new(path)  # its name decides the format
            outcome = Outcome.of(lambda: call.changed(**{argument: at}))
            shutil.rmtree(os.path.dirname(at))
        return outcome
