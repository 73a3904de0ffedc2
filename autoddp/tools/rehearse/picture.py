"""The check that a picture can be drawn where the user wants it."""

from __future__ import annotations

import importlib.util
import os

from autoddp.errors import BadInput


def check(path: str) -> None:
    """Check, before anything runs, that a picture can be drawn at `path`.

    Raises:
        BadInput: There is no matplotlib, or no such folder.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise BadInput(f"--plot is {path}, but matplotlib is missing; pip install 'autoddp[plot]'")
    folder = os.path.dirname(path)
    if folder and not os.path.isdir(folder):
        raise BadInput(f"--plot is {path}, but there is no folder {folder}; make it first")
