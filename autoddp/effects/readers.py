"""Functions that read a named file past Python's `open`: they are told where else it may lie."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from autoddp.effects.call import Call

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
    "cv2:imread",
    "torchvision.io:read_file",
    "torchvision.io.image:read_file",
    "torchvision.io:read_image",
    "torchvision.io.image:read_image",
)
# The names that these functions give that argument.
PATHS = ("f", "fname", "filename", "path", "source", "name")


def named_file(call: Call) -> bool:
    """Return whether the call of a reader names a file; one that is open is read only once."""
    given = [call.named.get(name) for name in PATHS] if call.named else call.args[:1]
    return any(isinstance(file, (str, bytes, os.PathLike)) for file in given)


def read(call: Call, find: Callable[[Any], Any]) -> Any:
    """Make the call of a reader, of the file where `find` says that it is."""
    # a function that is written in C does not tell the names of its arguments
    if not call.named and call.args and isinstance(call.args[0], (str, os.PathLike)):
        return call.wrapped(find(call.args[0]), *call.args[1:], **call.kwargs)
    for name in PATHS:
        given = call.named.get(name)
        if isinstance(given, (str, os.PathLike)):
            at = find(given)
            return call.plain() if at is given else call.changed(**{name: at})
    return call.plain()
