"""A script that is recorded while it runs, however its ranks were started."""

from __future__ import annotations

import errno
import json
import math
import os
import pkgutil
import random
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NoReturn

from autoddp import launch
from autoddp.comm.place import HERE
from autoddp.comm.world import World
from autoddp.errors import AutoDDPError, BadInput
from autoddp.options import Options
from autoddp.process import own_ddp
from autoddp.process.script import Script
from autoddp.process.source import SourceFacts
from autoddp.report import PREFIX
from autoddp.tools.record.recording import REPORT, Entry, RecordSettings, is_there

SEED = 20250131  # for every generator, before the script seeds its own


@dataclass(frozen=True)
class RecordedScript(Script):
    """A script that is recorded while it runs."""

    options: Options = field(default_factory=Options)
    settings: RecordSettings = field(default_factory=RecordSettings)
    apart: bool = False  # each rank draws for itself, as the script has its own DDP
    # what is done in each process before the script, as `package.module:function`
    changes: tuple[str, ...] = ()

    def run(self, whole_traceback: bool = False, ended: Sequence[Callable[[], None]] = ()) -> int:
        """Run the script as `Script.run` does, and record it."""
        from autoddp.tools.record.recorder import Recorder

        world = HERE.find()
        seed(SEED + world.rank * self.apart)
        with ExitStack() as undo:
            for name in self.changes:
                pkgutil.resolve_name(name)(undo)
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
        }

    def to_json(self) -> str:
        """Write the script, and how it is run, as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RecordedScript:
        """Read what `to_json` wrote."""
        values = json.loads(text)
        values |= {name: tuple(values[name]) for name in ("args", "changes")}
        values["options"] = Options.from_json(json.dumps(values["options"]))
        return cls(**values | {"settings": RecordSettings(**values["settings"])})


def main(path: str) -> NoReturn:
    """Run the script that a file describes, in a process of its own, as `autoddp run` does."""
    script = RecordedScript.from_json(Path(path).read_text())
    try:
        code = launch.run(script, script.options)
    except AutoDDPError as error:
        print(f"{PREFIX} {error}", file=sys.stderr)
        code = 2
    sys.exit(code)


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
    if there and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
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
