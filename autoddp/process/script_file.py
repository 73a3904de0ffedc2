"""The file that a script's name or a module's name leads to."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder

from autoddp.errors import BadInput

GLANCE = 1 << 16  # bytes of a file


def wanted(name: str) -> str:
    """Return what to do about a script that is not there."""
    first, space, _ = name.partition(" ")
    if re.fullmatch(r"python[0-9.]*", os.path.basename(name)):
        return f"leave {name} out: what follows it is the script"
    if space and os.path.exists(first):
        return f"leave the quotes out, as in autoddp run {name}"
    return "check the path"


def check_source(name: str, path: str) -> None:
    """Check by its first bytes that a file may be Python source.

    Raises:
        BadInput: The file is a notebook, or no text.
    """
    with open(path, "rb") as file:
        head = file.read(GLANCE)
    if name.endswith(".ipynb") or (head.lstrip()[:1] == b"{" and b'"cell_type"' in head):
        made = f"{name.removesuffix('.ipynb')}.py"
        raise BadInput(
            f"{name} is a notebook, which python does not run; jupyter nbconvert --to script "
            f"{name} makes {made} of it, or run its cells under %%autoddp in the notebook itself"
        )
    if b"\0" in head:
        raise BadInput(
            f"{name} is no Python source: it holds null bytes; give the script, as python takes it"
        )


def find_module(name: str) -> str:
    """Find the file of a module as `python -m` would, without importing anything.

    Raises:
        BadInput: There is no such module, or it cannot be run.
    """
    paths: Sequence[str] = sys.path if sys.flags.safe_path else [os.getcwd(), *sys.path[1:]]
    spec: ModuleSpec | None = None
    so_far = ""
    for part in name.split("."):
        so_far = f"{so_far}.{part}" if so_far else part
        spec = PathFinder.find_spec(so_far, paths)
        if spec is None:
            raise BadInput(f"no module named {so_far}; {_meant(so_far)}")
        paths = list(spec.submodule_search_locations or ())
    assert spec is not None
    if spec.submodule_search_locations is not None:
        return find_module(f"{name}.__main__")
    if spec.origin is None:
        raise BadInput(f"module {name} has no source file; give one that python -m could run")
    return spec.origin


def _meant(name: str) -> str:
    of, _, last = name.rpartition(".")
    if last == "py":
        return f"-m takes the name of a module: -m {of}, or the file without -m"
    if last == "__main__":
        return f"{of} is a package that cannot be run itself; give a module in it, as -m {of}.NAME"
    return "check its name, and the folder you are in"
