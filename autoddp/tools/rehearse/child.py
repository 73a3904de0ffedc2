"""One run of a script, on one process or on ranks, with a recorder in each of them."""

from __future__ import annotations

import os
import pkgutil
import random
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from autoddp import launch
from autoddp.comm.place import HERE
from autoddp.errors import AutoDDPError
from autoddp.options import Options
from autoddp.process import streams
from autoddp.process.script import Script, finish, forget
from autoddp.report import PREFIX
from autoddp.tools.rehearse.parents import serve
from autoddp.tools.rehearse.task import RunTask

SEED = 20250131  # for every generator, before the script seeds its own


@dataclass(frozen=True)
class RecordedScript(Script):
    """A script that is recorded while it runs."""

    task: RunTask | None = None

    def run(self, whole_traceback: bool = False, ended: Sequence[Callable[[], None]] = ()) -> int:
        """Run the script as `Script.run` does, within the recorder and the guard."""
        from autoddp.patching import Installation
        from autoddp.tools.rehearse.guard import Backups, OutsideGuard

        task, world = self.task, HERE.find()
        assert task is not None
        seed()
        guard = OutsideGuard(Path(task.root), Path(task.kept))
        # for the very rest of the process, so never closed: files are written at exit, too
        guard.setup(ExitStack())
        with ExitStack() as undo:
            if world.world_size == 1:
                undo.enter_context(Installation([Backups(guard)]))
            recorder = pkgutil.resolve_name(task.recorder)(task, world, undo)
            code = super().run(whole_traceback, ended)
            recorder.close(getattr(sys, "last_value", None))
        return code


def seed() -> None:
    """Seed random, torch and an imported numpy alike in all runs, for scripts that do not seed."""
    import torch

    random.seed(SEED)
    torch.manual_seed(SEED)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(SEED)


def main(fd: str, ranks: str) -> NoReturn:
    """Serve as a parent of runs: each fork runs its task, and ends as `autoddp run` does."""
    task = RunTask.read(serve(int(fd), ranks == "1"))
    script = RecordedScript(task.script, task.args, task.module, task)
    options = Options.from_json(task.options)
    try:
        code = launch.run(script, options)
        if options.nproc == options.nnodes == 1:
            code = finish(code)
            forget()
        else:
            streams.flush()
    except AutoDDPError as error:
        print(f"{PREFIX} {error}", file=sys.stderr)
        code = 2
    os._exit(code)
