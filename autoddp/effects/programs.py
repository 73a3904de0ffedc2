"""The programs that the script starts: they run once, on rank 0, and all ranks see their output."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from typing import Any, ClassVar

from autoddp.effects.engine import Mode
from autoddp.effects.outward import Outward
from autoddp.effects.running_programs import RunningPrograms as Running
from autoddp.effects.running_programs import for_asyncio
from autoddp.patching import Call, patch
from autoddp.report import users_line

THROUGH = (subprocess.__file__,)


class Programs(Outward):
    """The feature that runs a program once; `subprocess.run`, `os.popen` and others use it."""

    name: ClassVar[str] = "programs"
    without: ClassVar[str] = "every rank starts the programs that the script starts"
    views: ClassVar[tuple[str, ...]] = ("global",)

    def setup(self, undo: ExitStack) -> None:
        """Set up with no program started yet."""
        super().setup(undo)
        self.running = Running(self.effects)

    @patch(
        "subprocess:Popen.__init__",
        why="a program that the script starts runs once: rank 0 starts it",
    )
    def start_once(self, call: Call) -> Any:
        """Start the program on rank 0; the others hold a `Popen`, too, which asks rank 0."""
        mode = self.running.unhurried.users(THROUGH)
        if mode is Mode.PASS_THROUGH or not call.named:
            return call.plain()
        if for_asyncio():
            self.run.report.doubt(
                "programs",
                users_line(),
                "asyncio reads a program's pipes by their descriptors: it runs on every rank "
                "(subprocess.run in a thread runs it once)",
            )
            return call.plain()
        return self.running.start(mode, call.instance, call)

    @patch(
        "subprocess:Popen.poll",
        "subprocess:Popen.wait",
        "subprocess:Popen.communicate",
        "subprocess:Popen.send_signal",
        why="whether a program has ended, and what it printed, rank 0 tells",
    )
    def ask_once(self, call: Call) -> Any:
        """Ask rank 0's process; `terminate`, `kill` and leaving a `with` call these, too."""
        process = call.instance
        if not self.running.has(process) or (
            self.rank == 0 and self.running.unhurried.mode() is Mode.PASS_THROUGH
        ):
            return call.plain()
        return self.running.ask(process, call.wrapped.__name__, call.plain)

    @patch(
        "os:system",
        "os:posix_spawn",
        "os:posix_spawnp",
        why="a program that the script starts runs once: rank 0 starts it",
    )
    def run_once(self, call: Call) -> Any:
        """Run the program on rank 0; its exit status, or its process number, is for all ranks."""
        mode = self.running.unhurried.users()
        if mode is Mode.PASS_THROUGH:
            return call.plain()
        name = f"os.{call.wrapped.__name__}"
        return self.running.run(mode, name, repr(call.args[:2]), call.plain)
