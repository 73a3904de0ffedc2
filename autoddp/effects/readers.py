"""What reads a file that it is given by name past Python's open: where that lies elsewhere, it is told."""

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
# What these functions call that argument.
PATHS = ("f", "fname", "filename", "path", "source", "name")


def read(call: Call, find: Callable[[Any], Any]) -> Any:
    """Such a call, of the file where `find` says that it is."""
    if not call.named and call.args and isinstance(call.args[0], (str, os.PathLike)):  # written in C
        return call.wrapped(find(call.args[0]), *call.args[1:], **call.kwargs)
    for name in PATHS:
        given = call.named.get(name)
        if isinstance(given, (str, os.PathLike)):
            at = find(given)
            return call.plain() if at is given else call.changed(**{name: at})
    return call.plain()
