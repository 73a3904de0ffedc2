"""A checkpoint is loaded although the script that pickled its own classes into it is not imported."""

from __future__ import annotations

import functools
import pickle
import types
from pathlib import Path
from typing import Any


class Stranger(dict[str, Any]):
    """Stands for an object of the script's own class: its class's name and all that it holds."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self["arguments"], self["named"] = args, kwargs

    def __setstate__(self, state: Any) -> None:
        self["state"] = state

    def __call__(self, *args: Any, **kwargs: Any) -> Stranger:
        """Of a function that makes an object when it is loaded."""
        return self

    def append(self, item: Any) -> None:
        """Of a class that extends list."""
        self.setdefault("items", []).append(item)

    def extend(self, items: Any) -> None:
        """Of a class that extends list."""
        self.setdefault("items", []).extend(items)


class Unpickler(pickle.Unpickler):
    """Knows what can be imported, and makes a stranger of the rest."""

    def find_class(self, module: str, name: str) -> Any:
        """A class or function by its name."""
        try:
            return super().find_class(module, name)
        except (ImportError, AttributeError):
            return stranger(module, name)


@functools.cache
def stranger(module: str, name: str) -> Any:
    """The one class of that name: two files that hold it hold values of one type."""
    return type(name, (Stranger,), {"__module__": module})


def load_checkpoint(path: Path) -> Any:
    """What `torch.save` wrote, on the CPU."""
    import torch

    pickles: Any = types.SimpleNamespace(**vars(pickle) | {"Unpickler": Unpickler, "__name__": __name__})
    return torch.load(path, map_location="cpu", pickle_module=pickles, weights_only=False)
