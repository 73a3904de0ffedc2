"""Print lines above progress bars of tqdm and rich."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from functools import partial
from typing import Any


def above(stream: Any) -> Callable[[str], object] | None:
    """Return a function that writes a line above the bars of a stream; None without bars."""
    stderr: Any = sys.stderr
    # while it shows a display, rich replaces this stream
    if getattr(stderr, "rich_proxied_file", None) is stream and stderr.isatty():
        return partial(print, file=stderr)
    bars: Any = getattr(sys.modules.get("tqdm.std"), "tqdm", None)
    # without bars, do not take the lock, as this would fix multiprocessing's start method
    if not getattr(bars, "_instances", None):
        return None
    with bars.get_lock():  # other threads may make bars
        shown = [bar for bar in bars._instances if hasattr(bar, "start_t")]
    if any(bar.fp in (stream, sys.stdout, sys.stderr) for bar in shown):
        return partial(bars.write, file=stream)
    return None


def is_log(stream: Any) -> bool:
    """Return whether a stream is a file or a pipe, where bars cannot be redrawn."""
    return isinstance(stream, io.TextIOWrapper) and not stream.isatty()
