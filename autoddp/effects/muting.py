"""Nothing is printed in a trial: not by Python, not by C code, and no warning counts as given."""

from __future__ import annotations

import ctypes
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from autoddp.effects.cached import Cached

# What finds a cache if it is still there, a stream, and the text that was to be written there
# before the cache remembered its call.
Saved = list[tuple[Callable[[], Any], Any, Any]]


@contextmanager
def discarded(stream: Any, saved: Saved, cached: Cached, printed: list[Any]) -> Iterator[None]:
    """Note all writes to `stream`; save those that a cache keeps from happening again."""
    before = vars(stream).get("write")

    def write(text: Any) -> int:
        cache = cached.running()
        if cache is not None:
            saved.append((cache, stream, text))
        else:
            printed.append(text)
        return len(text)

    stream.write = write
    try:
        yield
    finally:
        if before is None:
            del stream.write
        else:
            stream.write = before


@contextmanager
def muted(printed: list[Any]) -> Iterator[None]:
    """Print nothing inside, also not by what holds on to the streams, or to descriptor 1.

    What Python would have printed is appended to `printed`.

    A call that a cache remembers (`warning_once` of many a library) will not print in earnest: what
    it said is printed afterwards.
    """
    saved: Saved = []
    cached = Cached()
    with ExitStack() as undo:
        undo.callback(cached.forget)
        undo.enter_context(_nowhere(1))
        undo.enter_context(_unwarned())
        for stream in (sys.stdout, sys.stderr):
            if stream is None or getattr(stream, "closed", False):
                continue
            stream.flush()  # what was printed before is to be seen
            for layer in (stream, getattr(stream, "buffer", None)):
                if hasattr(layer, "__dict__"):
                    undo.enter_context(discarded(layer, saved, cached, printed))
        yield
    for found, stream, text in saved:
        cache = found()
        # else it was put back, as the user's own are, or it went with the function that made it
        if cache is not None and cache.cache_info().currsize:
            stream.write(text)


@contextmanager
def _unwarned() -> Iterator[None]:
    """Ignore warnings without counting them as given, so that they are still shown in earnest.

    Python notes nothing where a filter ignores a warning; `catch_warnings` would have it forget all
    that it has shown.
    """
    filters, always = warnings.filters, torch.is_warn_always_enabled()
    ignore = ("ignore", re.compile(""), Warning, None, 0)
    filters.insert(0, ignore)  # type: ignore[attr-defined]  # its stub says Sequence
    torch.set_warn_always(True)  # else torch's C++ code notes what it gave once
    try:
        yield
    finally:
        torch.set_warn_always(always)
        if ignore in filters:  # the user's code may have reset them
            filters.remove(ignore)  # type: ignore[attr-defined]


@contextmanager
def _nowhere(number: int) -> Iterator[None]:
    """Throw away what is written to descriptor `number`, by C code too.

    Not for standard error: what a crash says there is to be seen.
    """
    try:
        kept = os.dup(number)
    except OSError:
        yield  # the descriptor is closed
        return
    nothing = os.open(os.devnull, os.O_WRONLY)
    try:
        _write_out()
        os.dup2(nothing, number)
        yield
    finally:
        _write_out()
        os.dup2(kept, number)
        os.close(kept)
        os.close(nothing)


def _write_out() -> None:
    """Flush what is buffered for standard output, in Python and in C."""
    for stream in (sys.stdout, sys.__stdout__):
        if stream is not None and not getattr(stream, "closed", False):
            stream.flush()
    ctypes.CDLL(None).fflush(None)
