"""What libraries do on every rank as if we were not there: where nothing that they write is the job's.

One list for all: by the place, never by who calls.
"""

from __future__ import annotations

import os
import tempfile

from autoddp.effects import paths
from autoddp.report import INSTALLED

# What is no file of anybody's: devices, shared memory, what the kernel tells.
NOBODYS = ("/dev/", "/proc/", "/sys/")
# What an interpreter and packages keep beside their own code.
PARTS = (*INSTALLED, "/__pycache__/")
# Environment variables that name folders in which libraries keep what they may make again.
NAMED = (
    *("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "TORCH_HOME", "TORCH_EXTENSIONS_DIR"),
    *("HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "MPLCONFIGDIR", "TORCHINDUCTOR_CACHE_DIR"),
    *("TRITON_CACHE_DIR", "NUMBA_CACHE_DIR", "CUDA_CACHE_PATH", "KERAS_HOME", "YOLO_CONFIG_DIR"),
    *("JOBLIB_TEMP_FOLDER", "PYTHONPYCACHEPREFIX"),
)
# Under fixed names in the temporary folder: compiled kernels, what worker processes of one rank share.
TEMPORARY = ("torchinductor_", "joblib_memmapping_folder_", "pymp-", "ray/")


def keeps(path: str, private: set[str]) -> bool:
    """Whether `path`, in full, lies where losing it would cost time alone, or it is this rank's own.

    The nearest of the folders that hold it decides: the job's own may lie below a temporary one, and
    a cache below the job's.

    Args:
        path: As `paths.text` makes it.
        private: Temporary folders and files that libraries on this rank made for themselves.
    """
    if path.startswith(NOBODYS) or any(part in path for part in PARTS):
        return True
    if path in private:
        return True
    home, job = os.path.expanduser("~"), paths.here().rstrip("/") + "/"
    folders = [f"{home}/.", *(f"{tempfile.gettempdir()}/{name}" for name in TEMPORARY)]
    folders += [f"{paths.text(os.environ[name])}/" for name in NAMED if os.environ.get(name)]
    folders += [f"{folder}/" for folder in private]
    longest = max((len(folder) for folder in folders if f"{path}/".startswith(folder)), default=0)
    return longest > (len(job) if f"{path}/".startswith(job) else 0)
