"""The terminal is rank 0's: what is typed there reaches all ranks, and all decide by it alike."""

from __future__ import annotations

import functools
import io
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, ClassVar

from autoddp.effects.engine import Mode
from autoddp.effects.outward import EffectRow, Outward, ask, each
from autoddp.effects.pipes import shared
from autoddp.patching import Call, patch
from autoddp.report.begun import Begun

STANDARD = (0, 1, 2)
OURS = ("autoddp.*", "wrapt.*")
PROMPTS = ("builtins:input", "getpass:getpass")
ONLY_RANK_0 = (
    "rank 0 alone has the terminal, and other ranks go on without it; input(), getpass(), "
    "sys.stdin and os.read(0) are read for all"
)


def _of_input(call: Call) -> bool:
    """Return whether standard input is what the call is about, or among it."""
    about = call.args[0] if call.args else None
    return any(
        one == 0 if isinstance(one, int) else one in (sys.stdin, sys.__stdin__)
        for one in (about if isinstance(about, (list, tuple)) else (about,))
    )


class Console(Outward):
    """One terminal for all ranks: input is read once; logs are formatted as on rank 0."""

    name: ClassVar[str] = "console"
    without: ClassVar[str] = (
        "each rank reads its own standard input and sees its own output's width and kind"
    )
    rows: ClassVar[tuple[EffectRow, ...]] = (
        # its end (Ctrl-D, Ctrl-C) is everybody's; a password travels between ranks in the clear
        ask(PROMPTS, why="what is typed is read once, on rank 0's terminal, for all"),
        ask(("os:read",), why="what is typed is read once, for all", when=_of_input),
        ask(
            ("getpass:getuser", "socket:gethostname"),
            why="the names of the user and the machine, which may say where to write, are rank 0's",
        ),
        each(
            ("select:select", "termios:tcgetattr", "tty:tcgetattr", "termios:tcsetattr"),
            why=ONLY_RANK_0,
            when=_of_input,
            optional=True,
        ),
    )

    def setup(self, undo: ExitStack) -> None:
        """Ask rank 0 once what its terminal is like."""
        super().setup(undo)
        report = self.run.report
        if report.speaks:
            report.begun = Begun(report.release_between, report.flag)
            for stream in (sys.stdout, sys.stderr):
                report.begun.watch(stream, undo)
        self.terminal: list[bool] = []
        self.size: list[list[int] | None] = []
        if not self.effects.synced:
            return
        self.terminal, self.size = self.run.group.call("the terminal", terminal)
        if isinstance(sys.stdin, io.TextIOWrapper):
            undo.callback(setattr, sys, "stdin", sys.stdin)
            own, isatty = sys.stdin, functools.partial(bool, self.terminal[0])
            facts = {"name": "<stdin>", "isatty": isatty, "fileno": own.fileno}
            sys.stdin = shared(own, self._ask, **facts)
        for number, stream in ((1, sys.stdout), (2, sys.stderr)) if self.rank else ():
            # a log says that it is a terminal if rank 0's is: so colours and bars agree
            if hasattr(stream, "__dict__") and "isatty" not in vars(stream):
                vars(stream)["isatty"] = functools.partial(bool, self.terminal[number])
                undo.callback(delattr, stream, "isatty")

    def serve(self, call: Call) -> Any:
        """Serve a row as any other; no line of ours is printed into a prompt.

        What is no terminal, `input` reads by `sys.stdin`, as all ranks do.
        """
        if call.target == "builtins:input" and not (self.terminal and self.terminal[0]):
            return call.plain()
        with self._prompting() if call.target in PROMPTS else nullcontext():
            return super().serve(call)

    def _ask(self, read: Callable[[], Any]) -> Any:
        """Return what rank 0 reads; a thread, or a data set's fetch, reads its own."""
        if self.effects.mode() is not Mode.SYNCED:
            return read()
        with self._prompting():
            return self.effects.ask_rank0("sys.stdin", read)

    def _prompting(self) -> AbstractContextManager[None]:
        """Have our lines wait while something is to be typed on rank 0's terminal."""
        here = self.run.report.speaks and self.terminal and self.terminal[0]
        return self.run.report.prompting() if here else nullcontext()

    @patch("os:isatty", why="whether there is a terminal is asked of rank 0's")
    def is_terminal(self, call: Call) -> Any:
        """Return rank 0's answer for the standard streams, this rank's for other descriptors."""
        number: Any = call.named.get("fd")
        return self.terminal[number] if self._is_standard(number) else call.plain()

    @patch("os:get_terminal_size", why="how wide the terminal is, is asked of rank 0's")
    def terminal_size(self, call: Call) -> Any:
        """Return rank 0's size as it was at the start; `shutil.get_terminal_size` asks this."""
        number = call.args[0] if call.args else 1  # a C function that takes no names
        if not self._is_standard(number):
            return call.plain()
        size = self.size[number]
        if size is None:
            raise OSError(25, "Inappropriate ioctl for device")
        return os.terminal_size(size)

    def _is_standard(self, number: Any) -> bool:
        return bool(self.rank and self.terminal and number in STANDARD and self.context.in_job())

    @patch("pdb:Pdb.__init__", why="the debugger steps over what is ours")
    def step_over_us(self, call: Call) -> Any:
        """Have the debugger skip `OURS`; its prompt asks by `input`, and so steers all ranks."""
        skip = [*(call.named.get("skip") or ()), *OURS]
        return call.changed(skip=skip) if call.named else call.plain()


def terminal() -> list[list[Any]]:
    """Return whether each of the three standard streams is a terminal, and their sizes or None."""
    return [[os.isatty(n) for n in STANDARD], [_size(n) for n in STANDARD]]


def _size(number: int) -> list[int] | None:
    try:
        return list(os.get_terminal_size(number))
    except OSError:
        return None  # the stream is no terminal
