"""Files that the script holds open for writing: rank 0's for real, the others' on scratch."""

from __future__ import annotations

import os
import shutil
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from autoddp.outside.effects import Call, Effects, Mode
from autoddp.outside.outcome import Outcome


class Opened:
    """Opens such files, and brings ranks together when one is closed.

    After a file was closed by the script, it is complete for every rank and whatever reads it.
    """

    def __init__(self, effects: Effects) -> None:
        self._effects = effects
        self._files: weakref.WeakSet[Any] = weakref.WeakSet()
        self._count = 0

    def open(self, mode: Mode, call: Call) -> Any:
        """The file for a call of `open` that writes."""
        if mode is Mode.TRIAL:
            return call.changed(file=os.devnull, mode=call.named["mode"].replace("x", "w"))
        if mode is Mode.AGREED:
            file = self._agreed(call)
        elif self._effects.rank == 0:
            file = call.plain()
        else:
            with self._effects.own():
                file = self._private(call, *self._prepared(call))
        self._files.add(file)
        return file

    @contextmanager
    def muted(self) -> Iterator[None]:
        """What is written to the files that are open leaves no trace."""
        with ExitStack() as undo:
            for file in list(self._files):
                if not file.closed:
                    undo.enter_context(discarded(file))
            yield

    def _agreed(self, call: Call) -> Any:
        """Rank 0 opens the file when all are here; what that raises, all raise."""
        effects, key = self._effects, f"closed/{self._count}"
        self._count += 1
        if effects.rank == 0:
            file = effects.change("open", call.plain)
            path = os.path.abspath(os.fsdecode(call.named["file"]))
            on_close(file, lambda it, close: self._publish(key, path, close))
            return file
        with effects.own():
            prepared = self._prepared(call)
        effects.change("open", call.plain)
        with effects.own():
            file = self._private(call, *prepared)
        on_close(file, lambda it, close: self._await(key, prepared[0], it, close))
        return file

    def _prepared(self, call: Call) -> tuple[str, str]:
        """The file's one name, and its copy on scratch, made before rank 0 touches it."""
        scratch = self._effects.scratch
        path = scratch.key(call.named["file"])
        at = scratch.find(path)
        if at is None:
            at = scratch.new(path)
            if not set("wx") & set(call.named["mode"]) and os.path.isfile(path):
                shutil.copyfile(path, at)
        return path, at

    def _private(self, call: Call, path: str, at: str) -> Any:
        """This rank's file, which says that it has the user's name."""
        mode = call.named["mode"].replace("x", "w")
        file = call.changed(file=at, mode=mode)
        raw = getattr(file, "buffer", file)
        raw = getattr(raw, "raw", raw)
        raw.name = call.named["file"]
        self._effects.scratch.lay(path, at)
        return file

    def _publish(self, key: str, path: str, close: Callable[[], None]) -> None:
        """Rank 0 closes, and says how it went."""
        if not self._effects.at_home():
            close()
            return
        with self._effects.own():
            outcome = Outcome.of(lambda: _closed(close, path))
            self._effects.group.publish(key, outcome)
            outcome.unwrap()

    def _await(self, key: str, path: str, file: Any, close: Callable[[], None]) -> None:
        """Another rank closes; unless nobody asked for it, it waits until rank 0 has, too."""
        final = file._finalizing
        close()
        if final or self._effects.mode() is not Mode.AGREED:
            return
        with self._effects.own():
            facts = self._effects.group.published(key)
            if facts is not None and facts == _facts(path):
                self._effects.scratch.drop(path)  # the real one is here, and the same for all readers


def on_close(file: Any, then: Callable[[Any, Callable[[], None]], None]) -> None:
    """Have `then(file, close)` called when the file is closed, by whatever closes it."""
    there = weakref.ref(file)  # a strong one would keep the file from being closed by its end

    def close() -> None:
        it = there()
        if it is not None and not it.closed:
            then(it, lambda: type(it).close(it))

    file.close = close


@contextmanager
def discarded(stream: Any) -> Iterator[None]:
    """What is written to a stream is thrown away, by whoever holds it."""
    before = vars(stream).get("write")
    stream.write = len
    try:
        yield
    finally:
        if before is None:
            del stream.write
        else:
            stream.write = before


def _closed(close: Callable[[], None], path: str) -> list[int] | None:
    close()
    return _facts(path)


def _facts(path: str) -> list[int] | None:
    """By what two ranks see that they see one file."""
    try:
        there = os.stat(path)
    except OSError:
        return None  # it was removed or renamed while it was open
    return [there.st_size, there.st_mtime_ns]
