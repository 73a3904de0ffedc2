"""Torch's compiler, imported once for all ranks of a node where the script would import it anyway.

The first optimizer imports `torch._dynamo`, and torchvision does: that takes as long as the import
of torch itself, in every rank. Whether it is worth while the words of the script tell; what the
script finds afterwards is as before: its environment, and its own modules.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path

import wrapt

from autoddp.comm.place import HERE
from autoddp.process import source
from autoddp.process.script import Script
from autoddp.report import Report

COMPILER = "torch._dynamo"
AT_WORK = "torch._inductor.compile_fx"  # imported when something is compiled
USES = re.compile(r"\b(optim|torchvision)\b")
# The compiler reads its settings in the environment at its import.
SETS = re.compile(r"environ|putenv|dotenv")


def is_wanted(script: Script) -> bool:
    """Return whether a script seems to import the compiler, and seems to set no variable first."""
    path, folder = script.find(), script.folder()
    texts = [script.text or ""]
    for file in source.files(path, folder, script.text):
        with suppress(OSError):
            texts.append(Path(file).read_text(errors="replace"))
    return any(map(USES.search, texts)) and not any(map(SETS.search, texts))


def import_for_all(folder: str) -> None:
    """Import the compiler in this process, the parent of ranks that import from `folder`.

    If that fails, it is for the script to fail.
    """
    modules, variables = set(sys.modules), set(os.environ)
    with _reads() as read, suppress(Exception):
        import_module(COMPILER)
    for name in set(os.environ) - variables:
        del os.environ[name]
    HERE.read_early = {name: os.environ.get(name) for name in read}
    _leave_to(folder, {name.partition(".")[0] for name in set(sys.modules) - modules})


def watch(report: Report) -> None:
    """Say so, if something is compiled after a variable was set which was read before.

    A library may have set it, whose words nobody has looked at.
    """

    def look(_: object) -> None:
        changed = [n for n, value in HERE.read_early.items() if os.environ.get(n) != value]
        if changed:
            report.doubt(
                "compiler",
                "",
                f"{changed[0]} was set by the script when torch's compiler had been imported for "
                "all ranks, and may not count; set it before autoddp, in the shell",
            )

    if HERE.read_early:
        wrapt.register_post_import_hook(look, AT_WORK)


@contextmanager
def _reads() -> Iterator[set[str]]:
    """Yield the names of the variables that are read meanwhile."""
    names: set[str] = set()
    kind = type(os.environ)
    plain = kind.__getitem__

    def noting(self: os._Environ[str], name: str) -> str:
        names.add(name)
        return plain(self, name)

    kind.__getitem__ = noting  # type: ignore[method-assign]
    try:
        yield names
    finally:
        kind.__getitem__ = plain  # type: ignore[method-assign]


def _leave_to(folder: str, names: set[str]) -> None:
    """Forget the modules of these names that the script's folder has, too: it finds its own."""
    for name in names - {"torch"}:
        spec = PathFinder.find_spec(name, [folder])
        if spec is not None and spec.origin is not None:  # else a folder, which python passes by
            for module in [m for m in sys.modules if m.partition(".")[0] == name]:
                del sys.modules[module]
