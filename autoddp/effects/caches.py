"""Paths where libraries write on every rank as if without autoddp: nothing there is the job's.

One list serves all libraries: it goes by the place, never by the caller.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from autoddp.effects import paths
from autoddp.report import INSTALLED
from autoddp.report.temporary import named, temporary_folder

# Devices, shared memory and what the kernel tells: nobody's files.
NOBODYS = ("/dev/", "/proc/", "/sys/")
# Folders of files that the interpreter and packages keep beside their own code.
PARTS = (*INSTALLED, "/__pycache__/")
# Environment variables that name folders in which libraries keep what they may make again.
NAMED = (
    *("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "TORCH_HOME", "TORCH_EXTENSIONS_DIR"),
    *("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "MPLCONFIGDIR", "TORCHINDUCTOR_CACHE_DIR"),
    *("TRITON_CACHE_DIR", "NUMBA_CACHE_DIR", "CUDA_CACHE_PATH", "KERAS_HOME", "YOLO_CONFIG_DIR"),
    *("JOBLIB_TEMP_FOLDER", "PYTHONPYCACHEPREFIX"),
)
# Fixed names in the temporary folder: compiled kernels, and what workers of one rank share.
TEMPORARY = ("torchinductor_", "joblib_memmapping_folder_", "pymp-", "ray/")


def _temporary() -> Iterator[str]:
    for folder in (temporary_folder(), *named()):
        yield from (f"{folder}/{name}" for name in TEMPORARY)


def keeps(path: str, private: set[str]) -> bool:
    """Return whether losing `path` would cost time alone, or `path` is this rank's own.

    The nearest of the folders that hold `path` decides: the job's own may lie below a temporary
    one, and a cache below the job's.

    Args:
        path: The full path, as `paths.text` makes it.
        private: Temporary folders and files that libraries on this rank made for themselves.
    """
    if path.startswith(NOBODYS) or any(part in path for part in PARTS):
        return True
    if path in private:
        return True
    home, job = os.path.expanduser("~"), paths.here().rstrip("/") + "/"
    folders = [f"{home}/.", *_temporary()]
    folders += [f"{paths.text(os.environ[name])}/" for name in NAMED if os.environ.get(name)]
    folders += [f"{folder}/" for folder in private]
    longest = max((len(folder) for folder in folders if f"{path}/".startswith(folder)), default=0)
    return longest > (len(job) if f"{path}/".startswith(job) else 0)
