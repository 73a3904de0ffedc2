"""Torch's compiler, imported once for all ranks of a node where the script would import it anyway.

The first optimizer imports `torch._dynamo`, and torchvision does: that takes as long as the import
of torch itself, in every rank. The text of the script decides whether it is imported. The script's
environment and its own modules are as before.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from importlib import import_module
from importlib.machinery import PathFinder

from autoddp.process import source
from autoddp.process.script import Script

COMPILER = "torch._dynamo"
USES = re.compile(rb"\b(optim|torchvision)\b")
# The compiler reads its settings in the environment at its import.
SETS = re.compile(rb"environ|putenv|dotenv")


def is_wanted(script: Script) -> bool:
    """Return whether a script seems to import the compiler, and seems to set no variable first."""
    text = b"\n".join(source.files(script.find(), script.folder()).values())
    return USES.search(text) is not None and not SETS.search(text)


def import_for_all(folder: str) -> None:
    """Import the compiler in this process, the parent of ranks that import from `folder`.

    If that fails, it is for the script to fail.
    """
    modules, variables = set(sys.modules), set(os.environ)
    with suppress(Exception):
        import_module(COMPILER)
    for name in set(os.environ) - variables:
        del os.environ[name]
    # a module that the script's folder has, too, is forgotten: the script finds its own
    for name in {name.partition(".")[0] for name in set(sys.modules) - modules} - {"torch"}:
        spec = PathFinder.find_spec(name, [folder])
        if spec is not None and spec.origin is not None:  # else a folder, which python passes by
            for module in [m for m in sys.modules if m.partition(".")[0] == name]:
                del sys.modules[module]
