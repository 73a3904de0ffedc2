"""The content of a file, by its kind: a checkpoint, arrays, the files of an archive, or text."""

from __future__ import annotations

import functools
import pickle
import types
import zipfile
from pathlib import Path
from typing import Any


def load(path: Path) -> Any:
    """Load a file without the script, whose own classes may be pickled in it.

    Raises:
        Exception: The file is of no such kind, or broken; an object in it may raise anything.
    """
    import numpy as np

    if start_of(path) == b"\x93NUM":
        return np.load(path, allow_pickle=False)
    if not zipfile.is_zipfile(path):
        return path.read_text(encoding="utf-8")
    with zipfile.ZipFile(path) as archive:
        inside = archive.namelist()
        if any(name.endswith("/data.pkl") for name in inside):
            return load_checkpoint(path)
        if inside and all(name.endswith(".npy") for name in inside):
            with np.load(path, allow_pickle=False) as arrays:
                return dict(arrays)
        return {name: archive.read(name) for name in inside}


def start_of(path: Path) -> bytes:
    """Return the bytes by which a file's kind is told."""
    with open(path, "rb") as file:
        return file.read(4)


def load_checkpoint(path: Path) -> Any:
    """Load what `torch.save` wrote, on the CPU."""
    import torch

    pickles: Any = types.SimpleNamespace(**vars(pickle) | {"Unpickler": Unpickler})
    return torch.load(path, map_location="cpu", pickle_module=pickles, weights_only=False)


class Unpickler(pickle.Unpickler):
    """An unpickler that makes a placeholder of what cannot be imported."""

    def find_class(self, module: str, name: str) -> Any:
        """Import a class or function by its name, or make a placeholder class of that name."""
        try:
            return super().find_class(module, name)
        except (ImportError, AttributeError):
            return stranger(module, name)


class Stranger(dict[str, Any]):
    """A placeholder for an object of the script's own class: the class's name, and all it holds."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(arguments=args, named=kwargs)

    def __setstate__(self, state: Any) -> None:
        self["state"] = state

    def __call__(self, *args: Any, **kwargs: Any) -> Stranger:
        """Stand for what an object of the script makes when it is called while loading."""
        return self

    def extend(self, items: Any) -> None:
        """Keep items, for a class that extends list."""
        self.setdefault("items", []).extend(items)

    def append(self, item: Any) -> None:
        """Keep an item, for a class that extends list."""
        self.extend([item])


@functools.cache
def stranger(module: str, name: str) -> Any:
    """Make the one placeholder class of a name: two files that hold it hold values of one type."""
    return type(name, (Stranger,), {"__module__": module})
