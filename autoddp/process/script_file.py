"""The file that a script's name or a module's name leads to."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder

from autoddp.errors import BadInput


def find_file(name: str) -> str:
    """Find the file of a script: absolute but not normalised, as python does.

    Raises:
        BadInput: There is no such file, or it cannot be read.
    """
    path = os.path.join(os.getcwd(), name)
    try:
        open(path, "rb").close()
    except OSError as error:
        raise BadInput(f"can't open file {path!r}: {error.strerror}") from None
    return path


def find_module(name: str) -> str:
    """Find the file of a module as `python -m` would, without importing anything.

    Raises:
        BadInput: There is no such module.
    """
    found = list(specs(name, sys.path if sys.flags.safe_path else [os.getcwd(), *sys.path[1:]]))
    if len(found) < len(name.split(".")):
        raise BadInput(f"no module named {name}; give its name without .py")
    if found[-1].submodule_search_locations is not None:
        return find_module(f"{name}.__main__")
    assert found[-1].origin is not None
    return found[-1].origin


def specs(name: str, places: Sequence[str]) -> Iterator[ModuleSpec]:
    """Yield the specs of a module's packages and its own, as far as they are there.

    Nothing is imported.
    """
    for part in name.split("."):
        spec = PathFinder.find_spec(part, places)
        if spec is None:
            return
        yield spec
        places = list(spec.submodule_search_locations or ())
