"""Functions that read a named file past Python's `open`: they are told where else it may lie."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from autoddp.patching import Call

# Functions that read the file which an argument names without asking Python's open for it, or look
# first whether it is there.
READERS = (
    "torch:load",
    "torch.serialization:load",
    "torch.jit:load",
    "torch.jit._serialization:load",
    "numpy:loadtxt",
    "numpy:genfromtxt",
    "h5py:File.__init__",
    "safetensors:safe_open",
    "safetensors.torch:load_file",
    "safetensors.numpy:load_file",
    "pandas:read_parquet",
    "pandas.io.parquet:read_parquet",
    "pyarrow.parquet:read_table",
    "pyarrow.parquet:ParquetFile.__init__",
    "pyarrow:memory_map",
    "pyarrow.feather:read_table",
    "pandas:read_feather",
    "pandas.io.feather_format:read_feather",
    "cv2:imread",
    "torchvision.io:read_file",
    "torchvision.io.image:read_file",
    "torchvision.io:read_image",
    "torchvision.io.image:read_image",
)
# The names that these functions give that argument.
PATHS = ("f", "fname", "filename", "path", "source", "name")
NAMES = (str, bytes, os.PathLike)


def named_file(call: Call) -> bool:
    """Return whether the call of a reader names a file; one that is open is read only once."""
    # a function that is written in C does not tell the names of its arguments
    given = call.named or dict(zip(PATHS, call.args[:1], strict=False)) | call.kwargs
    return any(isinstance(given.get(name), NAMES) for name in PATHS)


def read(call: Call, find: Callable[[Any], Any]) -> Any:
    """Make the call of a reader, of the file where `find` says that it is."""
    if not call.named and call.args and isinstance(call.args[0], NAMES):
        return call.wrapped(find(call.args[0]), *call.args[1:], **call.kwargs)
    for name, given in (call.named or call.kwargs).items():
        if name not in PATHS or not isinstance(given, NAMES):
            continue
        at = find(given)
        if at is given:
            break
        if call.named:
            return call.changed(**{name: at})
        return call.wrapped(*call.args, **{**call.kwargs, name: at})
    return call.plain()
