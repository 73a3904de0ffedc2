"""Whose call it is: by the first calling frame outside the standard library and autoddp."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable
from enum import Enum
from functools import cache
from types import FrameType

import wrapt

from autoddp.report import INSTALLED, is_users

STDLIB = (sysconfig.get_paths()["stdlib"] + "/", sysconfig.get_paths()["platstdlib"] + "/")
# Modules of the standard library that count as the owner of their calls, whoever calls them.
_OWNERS = (
    *("importlib", "linecache", "tokenize", "inspect", "warnings", "traceback", "zipimport"),
    *("multiprocessing", "subprocess", "platform", "ctypes"),
)
# Modules of these that call functions which the script gives them, in workers.
_RUNNERS = ("multiprocessing/pool.py", "multiprocessing/process.py")
# Files of the standard library that decide by the clock for whom they serve: rotation of logs.
_BY_TIME = (STDLIB[0] + "logging/handlers.py", STDLIB[1] + "logging/handlers.py")
# Files that read the clock where ranks need not come in one order: torch times its compilers and
# its waiting, and threads change how often the bars of tqdm look, and what joblib hands out when.
_TIMES = tuple(
    f"{installed}{name}/" for installed in INSTALLED for name in ("torch", "tqdm", "joblib")
)
_NOT_TIMES = ("/torch/utils/tensorboard/", "/torch/utils/benchmark/")
# Packages that run worker processes: each rank, or one rank of each node, has its own workers.
_POOLS = (
    *("/torch/utils/data/", "/torch/multiprocessing/", "/joblib/externals/loky/"),
    *(f"{installed}multiprocess/" for installed in INSTALLED),  # multiprocessing with dill
)
_TRACKERS = tuple(
    f"{installed}{name}/"
    for installed in INSTALLED
    for name in ("wandb", "comet_ml", "aim", "neptune", "clearml")
)
# Compilers, and what hands arrays to workers: their files and programs serve one rank.
_COMPILERS = tuple(
    f"{installed}{name}"
    for installed in INSTALLED
    for name in (
        *("torch/_inductor/", "torch/_dynamo/convert_frame.py", "torch/_functorch/_aot_autograd/"),
        *("torch/utils/cpp_extension.py", "triton/", "numba/", "cupy/cuda/compiler.py"),
        "joblib/_memmapping_reducer.py",
    )
)
NOBODY = "<nobody>"  # no other code calls, as in a thread that runs a builtin function
_WRAPT = os.path.dirname(wrapt.__file__) + "/"
_HERE = os.path.dirname(os.path.dirname(__file__)) + "/"
# Files of autoddp whose frames are between a caller and the patched function.
_BETWEEN = tuple(
    _HERE + part
    for part in (
        *("training/", "effects/", "comm/", "patching/", "process/own_groups.py"),
        *("process/frames.py", "process/stacks.py", "process/warned.py", "process/script.py"),
    )
)
_SESSION = "/IPython/core/interactiveshell.py"  # `open` in a notebook is a wrapper in this file
_LINK = _HERE + "training/loading/link.py"  # the owner of its own calls


class Caller(Enum):
    """Whose call it is."""

    SCRIPT = "the user's own code"
    LIBRARY = "an installed package, or nobody that is known"
    TRACKER = "an experiment tracker, which is disabled on ranks above 0"
    RANK = "an import, a traceback, a pool of workers or a compiler, which serve one rank"


@cache
def _passes(filename: str) -> bool:
    """Return whether the owner of a call by this file is its caller: standard library, autoddp."""
    if filename.startswith((*_BETWEEN, _WRAPT)) and not filename.startswith(_LINK):
        return True  # checked first, as autoddp may be in site-packages
    if filename.startswith("<frozen "):
        return not filename.startswith(("<frozen importlib", "<frozen zipimport"))
    if _of(INSTALLED, filename):
        return filename.endswith(_SESSION)
    root = filename.removeprefix(STDLIB[0]).removeprefix(STDLIB[1])
    return root != filename and (root.startswith(_RUNNERS) or not root.startswith(_OWNERS))


@cache
def _of(folders: tuple[str, ...], filename: str) -> bool:
    return any(part in filename for part in folders)


def caller(through: tuple[str, ...] = (), pools: bool = False) -> str:
    """Return the file of the first frame outside the standard library, autoddp and `through`.

    Args:
        through: Further files, and folders, whose frames are not looked at.
        pools: Whether a pool or an executor of the standard library is found, too.
    """
    frame = sys._getframe(1)
    while _passes(file := frame.f_code.co_filename) or file.startswith(through):
        if pools and _runs_workers(file) and not file.startswith(through):
            return file
        if frame.f_back is None:
            return NOBODY
        frame = frame.f_back
    return frame.f_code.co_filename


@cache
def _runs_workers(filename: str) -> bool:
    """Return whether a file of the standard library starts processes and talks to them."""
    root = filename.removeprefix(STDLIB[0]).removeprefix(STDLIB[1])
    return root != filename and root.startswith(("multiprocessing/", "concurrent/"))


def users_call(through: tuple[str, ...] = ()) -> bool:
    """Return whether the frame that `caller` finds is the user's."""
    return is_users(caller(through))


@cache
def is_pythons(file: str) -> bool:
    """Return whether a file is the interpreter's or the standard library's."""
    # site-packages of a virtual environment are below a folder of the library
    return file.startswith(("<frozen ", *STDLIB)) and not _of(INSTALLED, file)


def anybody() -> Caller:
    """Return SCRIPT: it does not matter who calls."""
    return Caller.SCRIPT


def scripts(*through: str) -> Callable[[], Caller]:
    """Return a `whose` for calls that are each rank's if a library makes them, but `through`."""
    return lambda: Caller.SCRIPT if users_call(through) else Caller.RANK


def whose(*through: str) -> Caller:
    """Return whose call it is, by the frames up to the script's nearest one."""
    owner = caller(through)
    if serves(owner):
        return Caller.RANK
    if is_users(owner):
        return Caller.SCRIPT
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_users(file := frame.f_code.co_filename):
        if _of(_COMPILERS, file):
            return Caller.RANK
        if _of(_TRACKERS, file):
            return Caller.TRACKER
        frame = frame.f_back
    return Caller.LIBRARY


@cache
def serves(owner: str) -> bool:
    """Return whether the owner of a call is autoddp, Python itself or a pool of workers."""
    return owner.startswith(_HERE) or is_pythons(owner) or _of(_POOLS, owner)


@cache
def decides(filename: str) -> bool:
    """Return whether the script may depend on a clock that this file reads."""
    if is_users(filename) or filename.startswith(_BY_TIME):
        return True
    timed = _of(_TIMES, filename) and not _of(_NOT_TIMES, filename)
    return _of(INSTALLED, filename) and not (timed or serves(filename))


def loads_data() -> bool:
    """Return whether this process is a worker of a data loader."""
    worker = sys.modules.get("torch.utils.data._utils.worker")
    return worker is not None and worker.get_worker_info() is not None
