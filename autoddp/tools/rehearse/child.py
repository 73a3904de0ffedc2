"""One run of `autoddp run --record` in a sandbox, as a fork of a warm parent."""

from __future__ import annotations

import json
import os
import pkgutil
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from autoddp import launch
from autoddp.comm.place import HERE
from autoddp.errors import AutoDDPError
from autoddp.options import Options
from autoddp.process import streams
from autoddp.process.script import finish, forget
from autoddp.report import PREFIX
from autoddp.tools.record.script import RecordedScript
from autoddp.tools.record.settings import RecordSettings
from autoddp.tools.rehearse.parents import serve


@dataclass(frozen=True)
class SandboxedScript(RecordedScript):
    """A script that is recorded, and changes nothing outside of a folder that is not put back.

    Attributes:
        root: The folder in which the run may do what it likes.
        kept: The folder for copies of what it changes elsewhere.
        changes: What is done in each process before the script, as `package.module:function`.
    """

    root: str = ""
    kept: str = ""
    changes: tuple[str, ...] = ()

    def run(self, whole_traceback: bool = False, ended: Sequence[Callable[[], None]] = ()) -> int:
        """Run the script as `RecordedScript.run` does, within the guard."""
        from autoddp.patching import Installation
        from autoddp.tools.rehearse.guard import Backups, OutsideGuard

        guard = OutsideGuard(Path(self.root), Path(self.kept))
        # for the very rest of the process, so never closed: files are written at exit, too
        guard.setup(ExitStack())
        with ExitStack() as undo:
            if HERE.find().world_size == 1:
                undo.enter_context(Installation([Backups(guard)]))
            for name in self.changes:
                pkgutil.resolve_name(name)(undo)
            return super().run(whole_traceback, ended)

    def to_json(self) -> str:
        """Write the script, and how it is run, as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> SandboxedScript:
        """Read what `to_json` wrote."""
        values = json.loads(text)
        values |= {name: tuple(values[name]) for name in ("args", "changes")}
        values["options"] = Options.from_json(json.dumps(values["options"]))
        return cls(**values | {"settings": RecordSettings(**values["settings"])})


def main(fd: str, ranks: str) -> NoReturn:
    """Serve as a parent of runs: each fork runs its script, and ends as `autoddp run` does."""
    script = SandboxedScript.from_json(Path(serve(int(fd), ranks == "1")).read_text())
    options = script.options
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
