"""A script that is recorded while it runs, however its ranks were started."""

from __future__ import annotations

import errno
import os
import pickle
import pkgutil
import random
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
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
from autoddp.tools.record.recording import Entry, is_part

SEED = 20250131  # for every generator whose numbers are compared, before the script seeds it


@dataclass(frozen=True)
class RecordedScript(Script):
    """A script that is recorded while it runs."""

    options: Options = field(default_factory=Options)
    records: str = ""  # the folder of the recording
    numbers: bool = False  # fingerprints of what was computed, in place of where the time went
    steps: int | None = None  # after which the script ends, None for all
    # what is done in each process before the script, as `package.module:function`
    changes: tuple[str, ...] = ()

    def run(self, whole_traceback: bool = False, ended: Sequence[Callable[[], None]] = ()) -> int:
        """Run the script as `Script.run` does, and record it."""
        from autoddp.tools.record.recorder import Recorder

        world = HERE.find()
        if self.numbers:
            seed(SEED)
        with ExitStack() as undo:
            for name in self.changes:
                pkgutil.resolve_name(name)(undo)
            recorder = Recorder(self, world)
            recorder.setup(undo)
            code = super().run(whole_traceback, ended)
            recorder.close(code, getattr(sys, "last_value", None))
        return code

    def about(self, world: World) -> Entry:
        """Return what is known of the run as a whole before it ends."""
        return {
            "script": self.name,
            "arguments": list(self.args),
            "module": self.module,
            "view": self.options.view,
            "ranks": world.world_size,
        }


def main(path: str) -> NoReturn:
    """Run the script that a file holds, in a process of its own, as `autoddp run` does."""
    script = pickle.loads(Path(path).read_bytes())
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


def check_own(script: Script, options: Options) -> None:
    """Check that it is autoddp that makes the script distributed.

    Raises:
        BadInput: The script does so itself.
    """
    own = own_ddp.of(SourceFacts() if options.own_ddp == "no" else script.read(), options.own_ddp)
    if own.kind is not own_ddp.Kind.VIEW:
        raise BadInput(
            f"{script.name} is distributed by itself ({own.line or '--own-ddp yes'}): autoddp run "
            "is its launcher, and there is nothing of ours to verify, bench or record "
            "(--own-ddp no changes that)"
        )


def recorded(script: Script, options: Options, where: str) -> RecordedScript:
    """Return the script so that it is recorded in a folder when it runs.

    Raises:
        BadInput: There is a recording already, none can be made there, or none of this script.
    """
    check_own(script, options)
    try:
        os.makedirs(where, exist_ok=True)
        if not os.access(where, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        there = any(map(is_part, Path(where).iterdir()))
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
    given = {part.name: getattr(script, part.name) for part in fields(Script)}
    return RecordedScript(**given, options=options, records=os.path.abspath(where))
