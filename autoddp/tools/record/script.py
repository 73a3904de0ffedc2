"""A script that is recorded while it runs, however its ranks were started."""

from __future__ import annotations

import errno
import math
import os
import platform
import random
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from autoddp.comm.place import HERE
from autoddp.comm.world import World
from autoddp.errors import BadInput
from autoddp.options import Options
from autoddp.process import own_ddp
from autoddp.process.script import Script
from autoddp.process.source import SourceFacts
from autoddp.tools.record.recording import REPORT, Entry, is_there
from autoddp.tools.record.settings import RecordSettings

SEED = 20250131  # for every generator, before the script seeds its own


@dataclass(frozen=True)
class RecordedScript(Script):
    """A script that is recorded while it runs."""

    options: Options = field(default_factory=Options)
    settings: RecordSettings = field(default_factory=RecordSettings)
    apart: bool = False  # each rank draws for itself, as the script has its own DDP

    def run(self, whole_traceback: bool = False, ended: Sequence[Callable[[], None]] = ()) -> int:
        """Run the script as `Script.run` does, and record it."""
        from autoddp.tools.record.recorder import Recorder

        world = HERE.find()
        seed(SEED + world.rank * self.apart)
        with ExitStack() as undo:
            recorder = Recorder(self.settings, world, self.about(world))
            recorder.setup(undo)
            code = super().run(whole_traceback, ended)
            recorder.close(code, getattr(sys, "last_value", None))
        return code

    def about(self, world: World) -> Entry:
        """Describe the run as a whole: what ran, how, and where."""
        return {
            "script": self.name,
            "arguments": list(self.args),
            "module": self.module,
            "options": vars(self.options),
            "apart": self.apart or self.options.view == "local",
            "ranks": world.world_size,
            "nodes": math.ceil(world.world_size / world.local_world_size),
            "cores": len(os.sched_getaffinity(0)),
            "versions": {"python": platform.python_version()}
            | {name: installed(name) for name in ("autoddp", "torch")},
        }


def installed(name: str) -> str:
    """Return the version of a package, or the words "not installed"."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def seed(number: int) -> None:
    """Seed random, torch and an imported numpy alike in all runs, for scripts that do not seed."""
    import torch

    random.seed(number)
    torch.manual_seed(number)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(number)


def recorded(script: Script, options: Options, where: str) -> tuple[Script, Options]:
    """Return the script so that it is recorded in a folder, and the options to run it by.

    Raises:
        BadInput: There is a recording already, none can be made there, or none of this script.
    """
    own = own_ddp.of(SourceFacts() if options.own_ddp == "no" else script.read(), options.own_ddp)
    if own.kind is own_ddp.Kind.ONCE:
        raise BadInput(
            f"--record is {where}, but {script.name} starts its ranks itself "
            f"({own.line}), out of sight; leave --record out"
        )
    folder = os.path.abspath(where)
    again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
    try:
        os.makedirs(folder if where else where, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        there = is_there(folder)
    except OSError as error:
        raise BadInput(
            f"--record is {where or 'empty'}, which cannot be written to ({error.strerror}); "
            "give another folder"
        ) from None
    if there and not again:
        raise BadInput(
            f"--record is {where}, which holds a recording already; "
            "give another folder, or remove it"
        )
    kind = options.record_kind
    settings = RecordSettings(folder, numbers=kind != "times", times=kind != "numbers")
    given = {part.name: getattr(script, part.name) for part in fields(Script)}
    apart = own.kind is own_ddp.Kind.RANKS
    options = replace(options, report=options.report or os.path.join(folder, REPORT))
    return RecordedScript(**given, options=options, settings=settings, apart=apart), options
