"""Files that are open for writing: the real file on rank 0, a copy in the overlay elsewhere.

They are Python's own files except for `close`, in which ranks synchronize: after it the file is
complete for every rank and every program. All ranks raise an error of rank 0's close, and one of a
write of rank 0 that leaves a `with open(...)`.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable
from typing import Any

from autoddp.comm.outcome import Outcome
from autoddp.effects import overlay, paths
from autoddp.effects.engine import Effects, Writers
from autoddp.effects.who_acts import Mode
from autoddp.errors import ScratchFailed
from autoddp.patching import Call


def open_file(effects: Effects, mode: Mode, call: Call) -> Any:
    """Make a call of `open` that writes, and return this rank's file."""
    if not (mode is Mode.SYNCED or call.named):
        return call.plain()  # raises an error about its arguments
    path, letters = call.named.get("file", ""), set(call.named.get("mode", "w"))
    file, writers = open_once(
        effects, "open", mode, path, letters, call.plain, lambda at: call.changed(file=at)
    )
    raw = getattr(file, "buffer", file)
    getattr(raw, "raw", raw).name = os.fspath(path)
    if mode is not Mode.SYNCED or type(file) not in KINDS:
        return file
    full = os.path.abspath(os.fsdecode(path))

    def end(file: Any, close: Callable[[], None]) -> None:
        if file.closed or file._finalizing or effects.mode() is not Mode.SYNCED:
            close()  # by the garbage collector, which runs at different times on each rank
        else:
            _close(effects, close, file.failed, full, writers)

    return _with_close(file, call.named, end)


def open_once(
    effects: Effects,
    what: str,
    mode: Mode,
    path: Any,
    letters: set[str],
    act: Callable[[], Any],
    private: Callable[[str], Any],
) -> tuple[Any, Writers]:
    """Open a file by `act` on rank 0, and by `private(path in the overlay)` on other ranks.

    All ranks raise an error of rank 0 before they open their copies.
    """
    agreed, keep = mode is Mode.SYNCED, letters.isdisjoint("wx")
    writers = effects.writers(path, agreed)
    if effects.rank in writers.ranks:
        if agreed:
            return effects.do_on_rank0(what, act, lambda _: None, writers), writers
        with effects.context.internal():
            return act(), writers

    def opened(at: str) -> Any:
        if "x" in letters:  # a copy may exist though rank 0's file does not
            paths.remove(at)
        with effects.context.internal():
            return private(at)

    if not agreed:
        return overlay.named(lambda: opened(_alone(effects, path, letters)), path), writers
    # copy the old content before rank 0 opens the file, and make nothing else before it succeeds
    copied = Outcome.of(lambda: effects.overlay.copy(path) if keep else None)
    try:
        effects.do_on_rank0(what, act, writers=writers)
    except BaseException:
        with effects.context.internal():
            effects.overlay.drop(os.path.abspath(os.fsdecode(path)))
        raise
    copied.unwrap()
    return opened(effects.overlay.to_write(path, keep=False, checked=True)), writers


def _alone(effects: Effects, path: Any, letters: set[str]) -> str:
    """Return the path to which a rank above 0 writes without waiting for the others."""
    location = effects.overlay.find(path)
    if "r" in letters and not location.seen:
        raise overlay.error(errno.ENOENT, path)
    if "x" in letters and location.seen and location.own:  # else rank 0 may have made it
        raise overlay.error(errno.EEXIST, path)
    return effects.overlay.to_write(path, keep=letters.isdisjoint("wx"))


def _close(
    effects: Effects,
    close: Callable[[], None],
    failed: OSError | None,
    path: str,
    writers: Writers,
) -> None:
    """Close each rank's file; then drop this rank's copy, if it can see the real file."""

    def act() -> None:
        close()
        if failed is not None:
            raise failed

    error = None
    if effects.rank not in writers.ranks:
        with effects.context.internal():
            error = Outcome.of(act).error
    effects.ask_rank0("close", act)
    effects.repeat("close", act, writers)
    if isinstance(error, OSError):  # on this rank only
        raise ScratchFailed(
            f"rank {effects.rank} cannot keep its copy of {path}: {error.strerror}; "
            "set TMPDIR to a folder with more room"
        ) from error
    if effects.rank and paths.seen(path):
        with effects.context.internal():
            effects.overlay.drop(path)


class _Outermost:
    """The outermost layer of an open file, which calls `end` with the file and its own close."""

    end: Callable[[Any, Callable[[], None]], None] = staticmethod(lambda _, close: close())
    failed: OSError | None = None  # the error that ended its `with` statement

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        self.failed = error if isinstance(error, OSError) else None
        self.close()

    def close(self) -> None:
        """Close the file, on all ranks together."""
        top: Any = super()
        self.end(self, top.close)


# subclasses of Python's files with the same `repr`; a file without a buffer stays plain
KINDS: dict[type, Any] = {
    kind: type(f"_io.{kind.__name__}", (_Outermost, kind), {})
    for kind in (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
}


def _with_close(plain: Any, named: dict[str, Any], end: Callable[..., None]) -> Any:
    """Return `plain` with another outermost layer; `named` are the arguments of its `open`."""
    kind = KINDS[type(plain)]
    if isinstance(plain, io.TextIOWrapper):
        how = plain.encoding, plain.errors, named.get("newline"), plain.line_buffering
        file = kind(plain.detach(), *how)
        file.mode = named["mode"]
    else:
        size, raw = named.get("buffering", -1), plain.detach()
        file = kind(raw, size if size > 1 else max(raw._blksize, io.DEFAULT_BUFFER_SIZE))
    file.end = end
    return file
