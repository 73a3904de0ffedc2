"""The owner of a call: the first calling frame outside the standard library and autoddp."""

from __future__ import annotations

import os
import sys
import sysconfig
from functools import cache
from types import FrameType

import wrapt

from autoddp.report import INSTALLED, is_users

STDLIB = (sysconfig.get_paths()["stdlib"] + "/", sysconfig.get_paths()["platstdlib"] + "/")
# Modules of the standard library that count as the owner of their calls, whoever calls them.
_OWNERS = (
    *("importlib", "linecache", "tokenize", "inspect", "warnings", "traceback", "zipimport"),
    *("multiprocessing", "concurrent", "subprocess", "platform", "ctypes"),
)
# Files of libraries that decide by the clock, as a script does: callbacks of a trainer, names of
# runs, rotation of logs.
_BY_TIME = (
    *("/lightning/pytorch/callbacks/", "/pytorch_lightning/callbacks/"),
    *("/torch/utils/tensorboard/", "/tensorboardX/", "/logging/handlers.py"),
)
# Packages that run worker processes: each rank, or one rank of each node, has its own workers.
_POOLS = (
    *("/torch/utils/data/", "/torch/multiprocessing/", "/joblib/externals/loky/"),
    *(f"{installed}multiprocess/" for installed in INSTALLED),  # multiprocessing with dill
)
# Experiment trackers, which are disabled on ranks above 0.
_TRACKERS = ("wandb", "comet_ml", "aim", "neptune", "clearml")
_OF_TRACKERS = tuple(f"{part}{name}/" for part in INSTALLED for name in _TRACKERS)
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
NOBODY = "<nobody>"  # no other code calls, as in a thread of the standard library
_WRAPT = os.path.dirname(wrapt.__file__) + "/"
_HERE = os.path.dirname(os.path.dirname(__file__)) + "/"
# Files of autoddp whose frames are between a caller and the patched function.
_BETWEEN = tuple(
    _HERE + part
    for part in (
        *("training/", "effects/", "comm/", "patching/", "process/own_groups.py"),
        *("process/frames.py", "process/stacks.py", "process/warned.py"),
    )
)
_SESSION = "/IPython/core/interactiveshell.py"  # `open` in a notebook is a wrapper in this file
_LINK = _HERE + "training/loading/link.py"  # the owner of its own calls


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
    return root != filename and not root.startswith(_OWNERS)


@cache
def _of(folders: tuple[str, ...], filename: str) -> bool:
    return any(part in filename for part in folders)


def caller(depth: int = 1, through: tuple[str, ...] = ()) -> str:
    """Return the file of the first frame outside the standard library, autoddp and `through`."""
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
    # site-packages of a virtual environment are below a folder of the library
    return file.startswith(("<frozen ", *STDLIB)) and not _of(INSTALLED, file)


def by_interpreter(depth: int = 1) -> bool:
    """Return whether Python itself or a pool makes the call: an import, a traceback, a worker."""
    file = caller(depth + 1)
    return file == NOBODY or file.startswith(_HERE) or is_pythons(file) or _of(_POOLS, file)


def by_compiler(depth: int = 1) -> bool:
    """Return whether a compiler calls, and not code of the user's that a compiler has called."""
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None and not is_users(frame.f_code.co_filename):
        if _of(_COMPILERS, frame.f_code.co_filename):
            return True
        frame = frame.f_back
    return False


def within(folders: tuple[str, ...], depth: int = 1) -> bool:
    """Return whether a file in one of `folders` is among the calling frames."""
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None:
        if _of(folders, frame.f_code.co_filename):
            return True
        frame = frame.f_back
    return False


def by_tracker(depth: int = 1) -> bool:
    """Return whether an experiment tracker is among the calling frames."""
    loaded = any(name in sys.modules for name in _TRACKERS)
    return loaded and within(_OF_TRACKERS, depth + 1)


@cache
def decides(filename: str) -> bool:
    """Return whether the script may depend on a clock that this file reads."""
    return is_users(filename) or _of(_BY_TIME, filename)


def loads_data() -> bool:
    """Return whether this process is a worker of a data loader."""
    worker = sys.modules.get("torch.utils.data._utils.worker")
    return worker is not None and worker.get_worker_info() is not None
