"""Bars of tqdm and rich that are shown: print lines of autoddp above them."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from functools import partial
from typing import Any


def above(stream: Any) -> Callable[[str], object] | None:
    """Return what writes a line above the bars that are up on the stream; None if none is."""
    shown: Any = sys.stderr
    # while its display is shown, rich has a stream of its own there
    if getattr(shown, "rich_proxied_file", None) is stream and shown.isatty():
        return partial(print, file=shown)
    bars: Any = getattr(sys.modules.get("tqdm.std"), "tqdm", None)
    # its lock would choose multiprocessing's start method for the script, if no bar has asked yet
    if not getattr(bars, "_instances", None):
        return None
    with bars.get_lock():  # another thread may make a bar
        up = [bar for bar in bars._instances if hasattr(bar, "start_t")]
    if any(bar.fp in (stream, sys.stdout, sys.stderr) for bar in up):
        return partial(bars.write, file=stream)
    return None


def is_log(stream: Any) -> bool:
    """Return whether a stream is a file or pipe, where a bar drawn again is one more line."""
    return isinstance(stream, io.TextIOWrapper) and not stream.isatty()
