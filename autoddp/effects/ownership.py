"""The owner of a call: the first calling frame outside the standard library and outside of us."""

from __future__ import annotations

import os
import sys
import sysconfig
from functools import cache
from types import FrameType

import wrapt

from autoddp.report import INSTALLED, is_users

STDLIB = (sysconfig.get_paths()["stdlib"] + "/", sysconfig.get_paths()["platstdlib"] + "/")
# Modules whose reads and writes are their own business, however they were called.
_OWN_BUSINESS = (
    *("importlib", "linecache", "tokenize", "inspect", "warnings", "traceback", "zipimport"),
    *("multiprocessing", "concurrent", "subprocess", "platform", "ctypes"),
)
# What decides by the clock as a script does: a trainer's callbacks, what names runs by it, and logs
# that are renamed by it.
_BY_TIME = (
    *("/lightning/pytorch/callbacks/", "/pytorch_lightning/callbacks/"),
    *("/torch/utils/tensorboard/", "/tensorboardX/", "/logging/handlers.py"),
)
# Packages that run processes of their own, which each rank, or one for its node, has for itself.
_POOLS = ("/torch/utils/data/", "/torch/multiprocessing/", "/joblib/externals/loky/")
# Packages that are switched off on ranks above 0: what they do, rank 0 does alone.
_TRACKERS = ("wandb", "comet_ml", "aim", "neptune", "clearml")
_OF_TRACKERS = tuple(f"{part}{name}/" for part in INSTALLED for name in _TRACKERS)
NOBODY = "<nobody>"  # calls: a thread's first function may be the standard library's
_WRAPT = os.path.dirname(wrapt.__file__) + "/"
_HERE = os.path.dirname(os.path.dirname(__file__)) + "/"
# The files that stand between a caller and what it calls: all of ours that is patched in, and what
# that asks.
_MACHINERY = tuple(
    _HERE + part
    for part in (
        *("training/", "effects/", "comm/", "patching/", "process/own_groups.py"),
        *("process/frames.py", "process/stacks.py", "process/warned.py"),
    )
)
_SESSION = "/IPython/core/interactiveshell.py"  # `open` in a notebook is a wrapper in this file
_LINK = _HERE + "training/loading/link.py"  # calls what it needs for itself


@cache
def _passes(filename: str) -> bool:
    """Return whether a call by this file is its caller's: the standard library's, and our own."""
    if filename.startswith((*_MACHINERY, _WRAPT)) and not filename.startswith(_LINK):
        return True  # first of all: we may be installed, and are no library to the user's code
    if filename.startswith("<frozen "):
        return not filename.startswith(("<frozen importlib", "<frozen zipimport"))
    if _of(INSTALLED, filename):
        return filename.endswith(_SESSION)
    root = filename.removeprefix(STDLIB[0]).removeprefix(STDLIB[1])
    return root != filename and not root.startswith(_OWN_BUSINESS)


@cache
def _of(folders: tuple[str, ...], filename: str) -> bool:
    return any(part in filename for part in folders)


def caller(depth: int = 1, through: tuple[str, ...] = ()) -> str:
    """Return the file of the first calling frame outside the standard library, us and `through`."""
    frame = sys._getframe(depth)
    while _passes(frame.f_code.co_filename) or frame.f_code.co_filename.startswith(through):
        if frame.f_back is None:
            return NOBODY
        frame = frame.f_back
    return frame.f_code.co_filename


def users_call(depth: int = 1, through: tuple[str, ...] = ()) -> bool:
    """Return whether the frame that `caller` finds is the user's."""
    return is_users(caller(depth + 1, through))


@cache
def is_pythons(file: str) -> bool:
    """Return whether a file is the interpreter's or the standard library's."""
    # a virtual environment's packages lie below its folder of the library
    return file.startswith(("<frozen ", *STDLIB)) and not _of(INSTALLED, file)


def by_interpreter(depth: int = 1) -> bool:
    """Return whether the call serves no script: an import's, a traceback's, a pool's or ours."""
    file = caller(depth + 1)
    return file == NOBODY or file.startswith(_HERE) or is_pythons(file) or _of(_POOLS, file)


def within(folders: tuple[str, ...], depth: int = 1) -> bool:
    """Return whether a file in one of `folders` has called, for itself or by another package."""
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None:
        if _of(folders, frame.f_code.co_filename):
            return True
        frame = frame.f_back
    return False


def by_tracker(depth: int = 1) -> bool:
    """Return whether a tracker of experiments has called; most scripts import none."""
    imported = any(name in sys.modules for name in _TRACKERS)
    return imported and within(_OF_TRACKERS, depth + 1)


@cache
def decides(filename: str) -> bool:
    """Return whether a clock read by this file steers the script: the user's, or one like it."""
    return is_users(filename) or _of(_BY_TIME, filename)


def loads_data() -> bool:
    """Return whether this process is a worker of a data loader."""
    worker = sys.modules.get("torch.utils.data._utils.worker")
    return worker is not None and worker.get_worker_info() is not None
