"""The programs that the script starts: they run once, on rank 0, and all ranks see their output."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, ClassVar

from autoddp.effects.engine import Call, Mode, Outward
from autoddp.effects.running_programs import RunningPrograms as Running
from autoddp.effects.running_programs import for_asyncio
from autoddp.patching import patch
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
    def start_once(self, wrapped: Callable[..., Any], process: Any, args: Any, kwargs: Any) -> Any:
        """Start the program on rank 0; the others hold a `Popen`, too, which asks rank 0."""
        mode = self.running.unhurried.users(THROUGH)
        call = Call(wrapped, args, kwargs)
        if mode is Mode.PASS_THROUGH or not call.named:
            return wrapped(*args, **kwargs)
        if for_asyncio():
            self.run.report.doubt(
                "programs",
                users_line(),
                "asyncio reads a program's pipes by their descriptors: it runs on every rank "
                "(subprocess.run in a thread runs it once)",
            )
            return wrapped(*args, **kwargs)
        return self.running.start(mode, process, call)

    @patch(
        "subprocess:Popen.poll",
        "subprocess:Popen.wait",
        "subprocess:Popen.communicate",
        "subprocess:Popen.send_signal",
        why="whether a program has ended, and what it printed, rank 0 tells",
    )
    def ask_once(self, wrapped: Callable[..., Any], process: Any, args: Any, kwargs: Any) -> Any:
        """Ask rank 0's process; `terminate`, `kill` and leaving a `with` call these, too."""
        if not self.running.has(process) or (
            self.rank == 0 and self.running.unhurried.mode() is Mode.PASS_THROUGH
        ):
            return wrapped(*args, **kwargs)
        return self.running.ask(process, wrapped.__name__, lambda: wrapped(*args, **kwargs))

    @patch(
        "os:system",
        "os:posix_spawn",
        "os:posix_spawnp",
        why="a program that the script starts runs once: rank 0 starts it",
    )
    def run_once(self, wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
        """Run the program on rank 0; its exit status, or its process number, is for all ranks."""
        mode = self.running.unhurried.users()
        if mode is Mode.PASS_THROUGH:
            return wrapped(*args, **kwargs)
        name = f"os.{wrapped.__name__}"
        return self.running.run(mode, name, repr(args[:2]), lambda: wrapped(*args, **kwargs))
