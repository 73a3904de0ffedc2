"""The content of a file, by its kind: a checkpoint, arrays, the files of an archive, or text."""

from __future__ import annotations

import pickle
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch


def load(path: Path) -> Any:
    """Load a file without the script, whose own classes may be pickled in it.

    Raises:
        Exception: The file is of no known kind, or broken; an object in it may raise anything.
    """
    try:
        found = np.load(path, allow_pickle=False)  # of any archive, too
    except (ValueError, EOFError):
        return path.read_text(encoding="utf-8")
    if isinstance(found, np.ndarray):
        return found
    with found:
        if any(name.endswith("/data.pkl") for name in found.files):
            return load_checkpoint(path)
        return dict(found)


def load_checkpoint(path: Path) -> Any:
    """Load what `torch.save` wrote, on the CPU."""
    pickles: Any = types.SimpleNamespace(**vars(pickle) | {"Unpickler": Unpickler})
    return torch.load(path, map_location="cpu", pickle_module=pickles, weights_only=False)


class Unpickler(pickle.Unpickler):
    """An unpickler that puts a placeholder where a class cannot be imported."""

    def find_class(self, module: str, name: str) -> Any:
        """Import a class or function by its name, or return the class of placeholders."""
        try:
            return super().find_class(module, name)
        except (ImportError, AttributeError):
            return Placeholder


class Placeholder(dict[str, Any]):
    """A placeholder for an object of a class of the script: all that the object holds."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(arguments=args, named=kwargs)

    def __setstate__(self, state: Any) -> None:
        self["state"] = state
