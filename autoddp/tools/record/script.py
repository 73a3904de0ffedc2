"""A script that is recorded while it runs."""

from __future__ import annotations

import os
import pickle
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from autoddp import launch
from autoddp.comm.place import HERE
from autoddp.errors import AutoDDPError, BadInput
from autoddp.options import Options
from autoddp.process import own_ddp
from autoddp.process.script import Script
from autoddp.report import PREFIX
from autoddp.tools.record.recording import is_part

Change = Callable[[ExitStack], None]
SEED = 20250131  # for all generators


@dataclass(frozen=True)
class RecordedScript(Script):
    """A script that is recorded while it runs."""

    options: Options = field(default_factory=Options)
    records: str = ""  # the folder of the recording
    numbers: bool = False  # record the numbers of steps, not their times
    steps: int | None = None  # the number of steps after which the script ends
    changes: tuple[Change, ...] = ()  # called in each process before the script

    def run(self, whole_traceback: bool = False, ended: Sequence[Callable[[], None]] = ()) -> int:
        """Run the script as `Script.run` does, and record it."""
        from autoddp.tools.record.recorder import Recorder

        world = HERE.find()
        if self.numbers:  # for scripts without a seed
            import torch

            random.seed(SEED)
            torch.manual_seed(SEED)
            if "numpy" in sys.modules:
                sys.modules["numpy"].random.seed(SEED)
        with ExitStack() as undo:
            for change in self.changes:
                change(undo)
            recorder = Recorder(self, world)
            recorder.setup(undo)
            code = super().run(whole_traceback, ended)
            recorder.close(code, getattr(sys, "last_value", None))
        return code


def main(path: str) -> NoReturn:
    """Run the script that is pickled in a file, like `autoddp run`."""
    script = pickle.loads(Path(path).read_bytes())
    try:
        code = launch.run(script, script.options)
    except AutoDDPError as error:
        print(f"{PREFIX} {error}", file=sys.stderr)
        code = 2
    sys.exit(code)


def check_own(script: Script, options: Options) -> None:
    """Check that the script does not distribute itself.

    Raises:
        BadInput: It does.
    """
    own = own_ddp.of(script, options.own_ddp)
    if own.kind is not own_ddp.Kind.VIEW:
        raise BadInput(
            f"{script.name} is distributed by itself ({own.line or '--own-ddp yes'}), so "
            "autoddp only launches it, and there is nothing to verify, bench or record; use "
            "--own-ddp no if it should see one process"
        )


def recorded(script: Script, options: Options, where: str) -> RecordedScript:
    """Return a script that records itself in a folder when it runs.

    Raises:
        BadInput: The folder holds a recording or cannot be written to, or the script starts
            ranks of its own.
    """
    check_own(script, options)
    try:
        os.makedirs(where, exist_ok=True)
        tempfile.TemporaryFile(dir=where).close()
        exists = any(map(is_part, Path(where).iterdir()))
    except OSError as error:
        raise BadInput(
            f"--record is {where or 'empty'}, which cannot be written ({error.strerror}); "
            "give another folder"
        ) from None
    if exists and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        raise BadInput(
            f"--record is {where}, which holds a recording already; "
            "give another folder, or remove it"
        )
    return RecordedScript(**vars(script), options=options, records=os.path.abspath(where))
