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
        BadInput: There is no such file, or it cannot be read or run.
    """
    path = os.path.join(os.getcwd(), name)
    if os.path.isdir(path) or not os.access(path, os.R_OK):
        raise BadInput(
            f"no script at {name} (in {os.getcwd()}) that this user may read; check the path, "
            "leave out python before it, and give a package by -m"
        )
    if name.endswith(".ipynb"):
        made = f"{name.removesuffix('.ipynb')}.py"
        raise BadInput(
            f"{name} is a notebook, which python does not run; jupyter nbconvert --to script "
            f"{name} makes {made} of it, or run its cells under %%autoddp in the notebook itself"
        )
    return path


def find_module(name: str) -> str:
    """Find the file of a module as `python -m` would, without importing anything.

    Raises:
        BadInput: There is no such module, or it cannot be run.
    """
    found = list(specs(name, sys.path if sys.flags.safe_path else [os.getcwd(), *sys.path[1:]]))
    parts = name.split(".")
    if len(found) < len(parts):
        missing = ".".join(parts[: len(found) + 1])
        raise BadInput(
            f"no module named {missing}; check its name (without .py), and the folder you are in"
        )
    if found[-1].submodule_search_locations is not None:
        return find_module(f"{name}.__main__")
    if found[-1].origin is None:
        raise BadInput(f"module {name} has no source file; give one that python -m could run")
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
