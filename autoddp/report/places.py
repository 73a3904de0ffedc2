"""The name of a line of the user's code: `train.py:41`, or `In [7], line 3` in a notebook."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

CELL = "In ["  # how the name of a cell begins


def shell() -> Any:
    """Return the IPython session that this process is, or None."""
    module = sys.modules.get("IPython")
    ask = getattr(module, "get_ipython", None)
    return ask() if ask is not None else None


def cell(filename: str) -> str:
    """Return the name of the cell that IPython compiled under this name of a file, or nothing."""
    session = shell()
    ask = getattr(getattr(session, "compile", None), "format_code_name", None)
    named = ask(filename) if ask is not None else None
    return str(named[1]).replace("In[", CELL) if named else ""


def named(frame: FrameType | None) -> str:
    """Return the line that a frame is at; `?` for no frame."""
    if frame is None:
        return "?"
    filename = frame.f_code.co_filename
    found = cell(filename)
    return (
        f"{found}, line {frame.f_lineno}"
        if found
        else f"{filename.rpartition('/')[2]}:{frame.f_lineno}"
    )
