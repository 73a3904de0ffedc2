"""The terminal is rank 0's: all ranks get what is typed there, and its kind and size."""

from __future__ import annotations

import functools
import io
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, ClassVar

from autoddp.comm.outcome import Outcome
from autoddp.effects.engine import Mode
from autoddp.effects.outward import EffectRow, Outward, ask
from autoddp.effects.pipes import shared
from autoddp.patching import Call, patch
from autoddp.report.begun import Begun

STANDARD = (0, 1, 2)
PROMPTS = ("builtins:input", "getpass:getpass")


class Console(Outward):
    """One terminal for all ranks: input is read once; logs are formatted as on rank 0."""

    name: ClassVar[str] = "console"
    without: ClassVar[str] = (
        "each rank reads its own standard input and sees its own output's width and kind"
    )
    rows: ClassVar[tuple[EffectRow, ...]] = (
        # its end (Ctrl-D, Ctrl-C) is everybody's; a password travels between ranks in the clear
        ask(PROMPTS, why="what is typed is read once, on rank 0's terminal, for all"),
        ask(
            ("getpass:getuser", "socket:gethostname", "uuid:uuid1"),
            why="the names of the user and the machine, and ids made of them, are rank 0's",
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
        self.answers: dict[tuple[str, int], Outcome] = {}
        self.keyboard = False  # whether somebody types at rank 0's terminal
        if not self.effects.synced:
            return
        self.answers = self.run.group.call("the terminal", answers)
        terminal = [self.answers["isatty", number].value for number in STANDARD]
        self.keyboard = terminal[0]
        if isinstance(sys.stdin, io.TextIOWrapper):
            undo.callback(setattr, sys, "stdin", sys.stdin)
            own, isatty = sys.stdin, functools.partial(bool, terminal[0])
            facts = {"name": "<stdin>", "isatty": isatty, "fileno": own.fileno}
            sys.stdin = shared(own, self._ask, **facts)
        for number, stream in ((1, sys.stdout), (2, sys.stderr)) if self.rank else ():
            # a log says that it is a terminal if rank 0's is: so colours and bars agree
            if hasattr(stream, "__dict__") and "isatty" not in vars(stream):
                vars(stream)["isatty"] = functools.partial(bool, terminal[number])
                undo.callback(delattr, stream, "isatty")

    def serve(self, call: Call) -> Any:
        """Serve a row as any other; no line of ours is printed into a prompt.

        What is no terminal, `input` reads by `sys.stdin`, as all ranks do.
        """
        if call.target == "builtins:input" and not self.keyboard:
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
        here = self.run.report.speaks and self.keyboard
        return self.run.report.prompting() if here else nullcontext()

    @patch(
        *("os:isatty", "os:get_terminal_size"),
        why="whether there is a terminal, and how wide it is, is rank 0's answer at the start",
    )
    def look_once(self, call: Call) -> Any:
        """Return rank 0's answer for the standard streams, this rank's for other descriptors."""
        number = call.args[0] if call.args else 1  # C functions that take no names
        answer = self.answers.get((call.wrapped.__name__, number))
        here = self.rank and self.context.in_job()
        if answer is None or not here:
            return call.plain()
        return Outcome.from_bytes(answer.to_bytes()).unwrap()  # an error of its own each time


def answers() -> dict[tuple[str, int], Outcome]:
    """Return what the functions return for this rank's streams, by function and descriptor."""
    return {
        (ask.__name__, number): Outcome.of(functools.partial(ask, number))
        for ask in (os.isatty, os.get_terminal_size)
        for number in STANDARD
    }
