"""Whose call it is: the first calling frame outside the standard library, and outside of us."""

from __future__ import annotations

import os
import sys
import sysconfig
from functools import cache

import wrapt

from autoddp.report import INSTALLED, is_users

_STDLIB = (sysconfig.get_paths()["stdlib"] + "/", sysconfig.get_paths()["platstdlib"] + "/")
# What these read and write is their own business, however they were called.
_OWN_BUSINESS = (
    "importlib",
    "linecache",
    "tokenize",
    "inspect",
    "warnings",
    "traceback",
    "multiprocessing",
    "concurrent",
    "subprocess",
    "platform",
    "zipimport",
    "ctypes",
)
_CALLBACKS = ("/lightning/pytorch/callbacks/", "/pytorch_lightning/callbacks/")
_WRAPT = os.path.dirname(wrapt.__file__) + "/"
_HERE = os.path.dirname(os.path.dirname(__file__)) + "/"
# What stands between a caller and what is called: all of ours that is patched in, and what that asks.
_MACHINERY = tuple(_HERE + part for part in ("training/", "effects/", "comm/", "process/own_groups.py"))
_SHARING = _HERE + "training/sharing/"  # calls what it needs for itself


@cache
def _passes(filename: str) -> bool:
    """Whether whose call it is depends on who called this file: the standard library, and us."""
    if filename.startswith((*_MACHINERY, _WRAPT)) and not filename.startswith(_SHARING):
        return True  # first of all: we may be installed, and are no library to the user's code
    if filename.startswith("<frozen "):
        return not filename.startswith(("<frozen importlib", "<frozen zipimport"))
    if any(part in filename for part in INSTALLED):
        return False
    if filename.startswith(_STDLIB):
        root = filename.removeprefix(_STDLIB[0]).removeprefix(_STDLIB[1])
        return not root.startswith(_OWN_BUSINESS)
    return False


def caller(depth: int = 1, through: tuple[str, ...] = ()) -> str:
    """The file of the first calling frame outside the standard library, outside of us and of `through`."""
    frame = sys._getframe(depth)
    while _passes(frame.f_code.co_filename) or frame.f_code.co_filename.startswith(through):
        if frame.f_back is None:
            return "<nobody>"
        frame = frame.f_back
    return frame.f_code.co_filename


def users_call(depth: int = 1, through: tuple[str, ...] = ()) -> bool:
    """Whether that frame is the user's."""
    return is_users(caller(depth + 1, through))


@cache
def is_ours(filename: str) -> bool:
    """Whether it is a file of this package."""
    return filename.startswith(_HERE)


@cache
def decides(filename: str) -> bool:
    """Whether a clock that this file reads steers the script: the user's own, and a trainer's callbacks."""
    return is_users(filename) or any(part in filename for part in _CALLBACKS)


def loads_data() -> bool:
    """Whether this process is a worker of a data loader."""
    worker = sys.modules.get("torch.utils.data._utils.worker")
    return worker is not None and worker.get_worker_info() is not None
