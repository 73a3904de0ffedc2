"""Paths of caches, which every rank really reads and writes, as they hold no results of the job.

The list names paths, whichever library uses them. Files outside of it belong to the job: a script
may look at a cache of its own to decide whether to compute its results again.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from functools import lru_cache

from autoddp.effects import paths
from autoddp.report import INSTALLED
from autoddp.report.temporary import named, temporary_folder

# Devices, shared memory and the kernel's own files.
SYSTEM = ("/dev/", "/proc/", "/sys/")
# Folders of files that the interpreter and packages keep next to their own code.
PARTS = re.compile("|".join((*INSTALLED, "/__pycache__/")))
# Environment variables that name folders in which libraries keep reproducible files.
VARIABLES = (
    *("TORCH_HOME", "TORCH_EXTENSIONS_DIR", "HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE"),
    *("MPLCONFIGDIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "NUMBA_CACHE_DIR"),
    *("CUDA_CACHE_PATH", "KERAS_HOME", "YOLO_CONFIG_DIR", "JOBLIB_TEMP_FOLDER", "WANDB_CACHE_DIR"),
    *("WANDB_CONFIG_DIR", "IPYTHONDIR", "JUPYTER_CONFIG_DIR", "PYTHONPYCACHEPREFIX"),
)
# Parents of cache folders, as variable and default below the home folder; and the caches' names.
HOLD = {"XDG_CACHE_HOME": ".cache", "XDG_CONFIG_HOME": ".config", "XDG_DATA_HOME": ".local/share"}
LIBRARIES = (
    *("torch", "torch_extensions", "huggingface", "matplotlib", "fontconfig", "numba", "cupy"),
    *("triton", "jax", "pip", "uv", "wandb", "Ultralytics", "jupyter", "pooch", "nvidia"),
)
AT_HOME = (
    *(".triton", ".nv", ".cupy", ".keras", ".matplotlib", ".ipython", ".jupyter", ".numba"),
    *(".cython", ".pyxbld", ".local/lib", ".netrc", ".config/git"),
)
# all variables that the list depends on, encoded as `os.environ` keeps them
DEPENDS_ON = tuple(map(os.fsencode, ("HOME", "TMPDIR", "TEMP", "TMP", *HOLD, *VARIABLES)))
# Files by which Hugging Face's `datasets` decides whether to run the script's function again.
COMPUTED = re.compile(r".*/(cache-|generator/)")
# Fixed names in the temporary folder: compiled kernels, and files shared by workers of one rank.
TEMPORARY = ("torchinductor_", "joblib_memmapping_folder_", "pymp-", "ray/")


def keeps(path: str, private: set[str]) -> bool:
    """Return whether `path` is in a cache, or is private to this rank.

    The nearest known folder above `path` decides: the job's folder may be below a temporary one,
    and a cache below the job's folder.

    Args:
        path: The full path, as returned by `paths.text`.
        private: Temporary folders and files that libraries on this rank made for themselves.
    """
    if path.startswith(SYSTEM) or PARTS.search(path) or path in private:
        return True
    job = paths.here().rstrip("/") + "/"
    variables = os.environ._data  # type: ignore[attr-defined]
    folders, computed = _known((*map(variables.get, DEPENDS_ON), tempfile.tempdir, job))
    within = f"{path}/"
    if not within.startswith(folders) and not any(within.startswith(f"{one}/") for one in private):
        return False  # the common case
    if any(path.startswith(f) and COMPUTED.match(path, len(f) - 1) for f in computed):
        return False
    own = [*folders, *(f"{folder}/" for folder in private)]
    longest = max((len(folder) for folder in own if within.startswith(folder)), default=0)
    return longest > (len(job) if within.startswith(job) else 0)


@lru_cache(maxsize=8)
def _known(_: tuple[bytes | str | None, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the folders of caches, and those of `datasets`, for these values of variables."""
    return (*_caches(),), (*_of_datasets(),)


def _caches() -> Iterator[str]:
    home = os.path.expanduser("~")
    yield from (f"{home}/{name}/" for name in AT_HOME)
    for variable, default in HOLD.items():
        for folder in {f"{home}/{default}", *_folders_of(variable)}:
            yield from (f"{folder}/{name}/" for name in LIBRARIES)
    for variable in VARIABLES:
        yield from (f"{folder}/" for folder in _folders_of(variable))
    for folder in (temporary_folder(), *named()):
        yield from (f"{folder}/{name}" for name in TEMPORARY)


def _of_datasets() -> Iterator[str]:
    yield from (f"{folder}/" for folder in _folders_of("HF_DATASETS_CACHE"))
    yield from (f"{folder}/datasets/" for folder in _folders_of("HF_HOME"))
    for folder in (os.path.expanduser("~/.cache"), *_folders_of("XDG_CACHE_HOME")):
        yield f"{folder}/huggingface/datasets/"


def _folders_of(variable: str) -> list[str]:
    value = os.environ.get(variable)
    return [paths.text(value)] if value else []
