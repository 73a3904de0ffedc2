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


def import_for_all(script: Script) -> None:
    """Import the compiler in this process, the parent of the ranks.

    Nothing is done if the script seems not to import it, or to set a variable first. If the import
    fails, it is for the script to fail.
    """
    folder = script.folder()
    text = b"\n".join(source.files(script.find(), folder).values())
    if not USES.search(text) or SETS.search(text):
        return
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
