"""One run: a script on one process or on ranks, with a recorder in each of them."""

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

SEED = 20250131  # of every generator, before the script seeds its own


@dataclass(frozen=True)
class RecordedScript(Script):
    """A script that is recorded while it runs."""

    task: RunTask | None = None

    def run(self, whole_traceback: bool = False, ended: Sequence[Callable[[], None]] = ()) -> int:
        """As any script, within the recorder and the guard."""
        from autoddp.patching import Installation
        from autoddp.tools.rehearse.guard import Backups, OutsideGuard

        task, world = self.task, HERE.find()
        assert task is not None
        seed()
        guard = OutsideGuard(Path(task.root), Path(task.kept))
        guard.setup(ExitStack())  # to the very end of the process: files are written at exit, too
        with ExitStack() as undo:
            if world.world_size == 1:
                undo.enter_context(Installation([Backups(guard)]))
            recorder = pkgutil.resolve_name(task.recorder)(task, world, undo)
            code = super().run(whole_traceback, ended)
            recorder.close(getattr(sys, "last_value", None))
        return code


def seed() -> None:
    """The same numbers for a script that does not seed."""
    import torch

    random.seed(SEED)
    torch.manual_seed(SEED)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(SEED)


def main(fd: str, ranks: str) -> NoReturn:
    """Be a parent of runs, and in each fork run its task and end as `autoddp run` does."""
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
