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
# Libraries that run the script's training for it, and what they write by: their calls are the script's.
_TRAINERS = tuple(
    installed + name
    for installed in INSTALLED
    for name in (
        "lightning/",
        "pytorch_lightning/",
        "lightning_fabric/",
        "lightning_utilities/",
        "accelerate/",
        "transformers/trainer",
        "transformers/training_args",
        "fsspec/",
    )
)
_CALLBACKS = ("/lightning/pytorch/callbacks/", "/pytorch_lightning/callbacks/")
_WRAPT = os.path.dirname(wrapt.__file__) + "/"
_HERE = os.path.dirname(os.path.dirname(__file__)) + "/"
_MACHINERY = tuple(
    _HERE + name
    for name in (
        "outside/effects.py",
        "outside/written.py",
        "outside/held.py",
        "features/files.py",
        "features/averaging.py",
        "features/programs.py",
        "features/processes.py",
        "features/children.py",
        "features/groups.py",
        "outside/programs.py",
        "outside/pipes.py",
        "outside/told.py",
        "features/holders.py",
        "features/trackers.py",
        "features/folders.py",
        "features/nodes.py",
        "outside/handover.py",
        "features/temporary.py",
        "features/clocks.py",
        "features/signals.py",
        "outside/opened.py",
        "outside/layers.py",
        "features/descriptors.py",
        "outside/typed.py",
        "features/witness.py",
        "features/downloads.py",
        "features/console.py",
        "features/randomness.py",
    )
)


@cache
def _passes(filename: str) -> bool:
    """Whether whose call it is depends on who called this file: the standard library, trainers, and us."""
    if filename in _MACHINERY or filename.startswith(_WRAPT):
        return True  # first of all: we may be installed, and are no library to the user's code
    if filename.startswith("<frozen "):
        return not filename.startswith(("<frozen importlib", "<frozen zipimport"))
    if any(part in filename for part in INSTALLED):
        return any(part in filename for part in _TRAINERS)
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
def decides(filename: str) -> bool:
    """Whether a clock that this file reads steers the script: the user's own, and a trainer's callbacks."""
    return is_users(filename) or any(part in filename for part in _CALLBACKS)


def loads_data() -> bool:
    """Whether this process is a worker of a data loader."""
    worker = sys.modules.get("torch.utils.data._utils.worker")
    return worker is not None and worker.get_worker_info() is not None
