"""Load files for a comparison: checkpoints, arrays, archives of arrays, or text."""

from __future__ import annotations

import pickle
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch


def load(path: Path) -> Any:
    """Load a file without importing the script, whose classes may be pickled in it.

    Raises:
        Exception: The file is broken or of an unknown kind, or an object in it raises.
    """
    try:
        content = np.load(path, allow_pickle=False)  # opens any zip archive
    except (ValueError, EOFError):
        return path.read_text(encoding="utf-8")
    if isinstance(content, np.ndarray):
        return content
    with content:
        if any(name.endswith("/data.pkl") for name in content.files):
            return load_checkpoint(path)
        return dict(content)


def load_checkpoint(path: Path) -> Any:
    """Load a checkpoint of `torch.save` on the CPU."""
    pickles: Any = types.SimpleNamespace(**vars(pickle) | {"Unpickler": Unpickler})
    return torch.load(path, map_location="cpu", pickle_module=pickles, weights_only=False)


class Unpickler(pickle.Unpickler):
    """An unpickler that replaces classes that cannot be imported by placeholders."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a class or function by its name, or the class of placeholders."""
        try:
            return super().find_class(module, name)
        except (ImportError, AttributeError):
            return Placeholder


class Placeholder(dict[str, Any]):
    """A placeholder for an object of the script, with the content of the object."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(arguments=args, named=kwargs)

    def __setstate__(self, state: Any) -> None:
        self["state"] = state
