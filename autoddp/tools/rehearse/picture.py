"""The check that a picture can be drawn where the user wants it."""

from __future__ import annotations

import importlib.util
import os

from autoddp.errors import BadInput

KINDS = ("png", "pdf", "svg", "jpg", "jpeg", "webp", "tif", "eps")


def check(path: str) -> None:
    """Check, before anything runs, that a picture can be drawn at `path`.

    Raises:
        BadInput: There is no matplotlib, no such folder, or no such kind of picture.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise BadInput(f"--plot is {path}, but matplotlib is missing; pip install 'autoddp[plot]'")
    folder = os.path.dirname(path)
    if folder and not os.path.isdir(folder):
        raise BadInput(f"--plot is {path}, but there is no folder {folder}; make it first")
    kind = os.path.splitext(path)[1][1:].lower()
    if kind not in KINDS:
        raise BadInput(
            f"--plot is {path}, whose ending names no kind of picture; give one of "
            f"{', '.join(KINDS)}, as in losses.png"
        )
