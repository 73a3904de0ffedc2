"""The terminal: all ranks get rank 0's input, and the kind and width of its terminal."""

from __future__ import annotations

import functools
import io
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, ClassVar

from autoddp.comm.outcome import Outcome
from autoddp.effects.effect_feature import EffectFeature, EffectRow, ask
from autoddp.effects.pipes import shared
from autoddp.effects.who_acts import Mode
from autoddp.patching import Call, patch
from autoddp.report.begun import OpenLine

STANDARD = (0, 1, 2)
PROMPTS = ("builtins:input", "getpass:getpass")


class Console(EffectFeature):
    """The feature for the terminal: input is read once; all ranks format output as on rank 0."""

    name: ClassVar[str] = "console"
    without: ClassVar[str] = (
        "each rank reads its own standard input, and formats its output for its own terminal"
    )
    rows: ClassVar[tuple[EffectRow, ...]] = (
        # Ctrl-D and Ctrl-C reach all ranks; a password is sent between ranks unencrypted
        ask(PROMPTS, why="rank 0 reads the terminal once for all ranks"),
        ask(
            ("getpass:getuser", "socket:gethostname", "uuid:uuid1"),
            why="all ranks get rank 0's names of the user and the machine, and ids made of them",
        ),
    )

    def setup(self, undo: ExitStack) -> None:
        """Ask rank 0 once for the properties of its terminal."""
        super().setup(undo)
        report = self.run.report
        if report.speaks:
            report.begun = OpenLine(report.release_between, report.flag)
            for stream in (sys.stdout, sys.stderr):
                report.begun.watch(stream, undo)
        self.answers: dict[tuple[str, int], Outcome] = {}
        self.keyboard = False  # whether rank 0's stdin is a terminal
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
            # a log claims to be a terminal if rank 0's stream is one: colours and bars agree
            if hasattr(stream, "__dict__") and "isatty" not in vars(stream):
                vars(stream)["isatty"] = functools.partial(bool, terminal[number])
                undo.callback(delattr, stream, "isatty")

    def serve(self, call: Call) -> Any:
        """Handle a call like any row of the table, but hold autoddp's lines during a prompt.

        Without a terminal `input` reads from `sys.stdin`, which all ranks share anyway.
        """
        if call.target == "builtins:input" and not self.keyboard:
            return call.plain()
        with self._prompting() if call.target in PROMPTS else nullcontext():
            return super().serve(call)

    def _ask(self, read: Callable[[], Any]) -> Any:
        """Return what rank 0 reads; a thread, or a data set's fetch, reads this rank's stdin."""
        if self.effects.mode() is not Mode.SYNCED:
            return read()
        with self._prompting():
            return self.effects.ask_rank0("sys.stdin", read)

    def _prompting(self) -> AbstractContextManager[None]:
        """Hold autoddp's lines while rank 0 waits for input from its terminal."""
        prints = self.run.report.speaks and self.keyboard
        return self.run.report.prompting() if prints else nullcontext()

    @patch(
        *("os:isatty", "os:get_terminal_size"),
        why="all ranks get rank 0's answers on whether there is a terminal, and how wide it is",
    )
    def look_once(self, call: Call) -> Any:
        """Return rank 0's answer for the standard streams, this rank's for other descriptors."""
        number = call.args[0] if call.args else 1  # C functions take no keywords
        answer = self.answers.get((call.wrapped.__name__, number))
        shared = self.rank and self.context.in_job()
        if answer is None or not shared:
            return call.plain()
        return Outcome.from_bytes(answer.to_bytes()).unwrap()  # a new error each time


def answers() -> dict[tuple[str, int], Outcome]:
    """Return what the functions return for this rank's streams, by function and descriptor."""
    return {
        (ask.__name__, number): Outcome.of(functools.partial(ask, number))
        for ask in (os.isatty, os.get_terminal_size)
        for number in STANDARD
    }
