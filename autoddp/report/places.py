"""The name of a line of the user's code: `train.py:41`, or `In [7], line 3` in a notebook."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

CELL = "In ["  # the beginning of the name of a cell


def shell() -> Any:
    """Return the IPython session of this process, or None."""
    module = sys.modules.get("IPython")
    get = getattr(module, "get_ipython", None)
    return get() if get is not None else None


def cell(filename: str) -> str:
    """Return the name of the cell that IPython compiled under this file name, or an empty text."""
    session = shell()
    get = getattr(getattr(session, "compile", None), "format_code_name", None)
    name = get(filename) if get is not None else None
    return str(name[1]).replace("In[", CELL) if name else ""


def named(frame: FrameType | None) -> str:
    """Return the current line of a frame; `?` for no frame."""
    if frame is None:
        return "?"
    filename = frame.f_code.co_filename
    if name := cell(filename):
        return f"{name}, line {frame.f_lineno}"
    return f"{filename.rpartition('/')[2]}:{frame.f_lineno}"
