"""The terminal is rank 0's: what is typed there reaches all ranks, and all decide by it alike."""

from __future__ import annotations

import builtins
import getpass
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, ClassVar

from autoddp.effects.engine import Mode
from autoddp.effects.outward import Outward
from autoddp.effects.rows import EffectRow, ask
from autoddp.effects.stdin import SharedStdin
from autoddp.patching import Call, patch, stands_for
from autoddp.report.begun import Begun

STANDARD = (0, 1, 2)
OURS = ("autoddp.*", "wrapt.*")
ASKS = ((builtins, "input"), (getpass, "getpass"))
PROMPTS = ("builtins:input", "getpass:getpass")


class Console(Outward):
    """One terminal for all ranks: input is read once; logs are formatted as on rank 0."""

    name: ClassVar[str] = "console"
    without: ClassVar[str] = (
        "each rank reads its own standard input and sees its own output's width and kind"
    )
    rows: ClassVar[tuple[EffectRow, ...]] = (
        # its end (Ctrl-D, Ctrl-C) is everybody's; a password travels between ranks in the clear
        ask(
            *PROMPTS,
            why="what is typed is read once, on rank 0's terminal, for all",
        ),
        ask("getpass:getuser", why="the login name, which may say where to write, is rank 0's"),
        ask(
            "termios:tcgetattr",
            "tty:tcgetattr",
            why="how the terminal is set is asked of rank 0's",
            when=lambda call: _is_standard(call.args),
            pack=lambda settings: _spelled(settings),
            unpack=lambda answer: _read(answer),
            optional=True,
        ),
        # not once all are here: one rank may be far behind, and nobody but rank 0 has a terminal
        ask(
            "termios:tcsetattr",
            "tty:tcsetattr",
            "termios:tcflush",
            "termios:tcdrain",
            why="rank 0's terminal is set; others have none",
            when=lambda call: _is_standard(call.args),
            optional=True,
        ),
    )

    def setup(self, undo: ExitStack) -> None:
        """Ask rank 0 once what its terminal is like."""
        super().setup(undo)
        self._watched = ExitStack()  # the watch on the streams of a notebook's cell
        report = self.run.report
        if report.speaks:
            report.begun = Begun(report.release_between, report.flag)
            self._watch(undo)
        self.context.asides.append(self._aside)
        undo.callback(self.context.asides.remove, self._aside)
        self.terminal: list[bool] = []
        self.size: list[list[int] | None] = []
        if self.effects.synced:
            answer = self.run.group.call("the terminal", terminal)
            self.terminal, self.size = answer
            self._share_input(undo)
        if self.terminal and self.rank:
            for number, stream in ((1, sys.stdout), (2, sys.stderr)):
                self._look_alike(number, stream, undo)

    def serve(self, call: Call) -> Any:
        """Serve a row as any other; nothing of ours is said into a prompt."""
        with self._prompting() if call.target in PROMPTS else nullcontext():
            return super().serve(call)

    def _watch(self, undo: ExitStack) -> None:
        for stream in (sys.stdout, sys.stderr):
            self.run.report.begun.watch(stream, undo)

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """Have the prompts and streams that are ours again after what is inside.

        A notebook's kernel sets its own of them at each cell.
        """
        ours = [getattr(module, name) for module, name in ASKS]
        self._watched.close()
        yield
        for (module, name), prompt in zip(ASKS, ours, strict=True):
            setattr(module, name, prompt)
        if self.run.report.speaks:
            self._watch(self._watched)

    def _prompting(self) -> AbstractContextManager[None]:
        """Have our lines wait while something is to be typed on rank 0's terminal."""
        here = self.run.report.speaks and self.terminal and self.terminal[0]
        return self.run.report.prompting() if here else nullcontext()

    @patch("os:isatty", why="whether there is a terminal is asked of rank 0's")
    def is_terminal(self, call: Call) -> Any:
        """Return rank 0's answer for the standard streams, this rank's for other descriptors."""
        number = call.named.get("fd")
        if self.rank and self.terminal and number in STANDARD and self.effects.context.in_job():
            return self.terminal[number]
        return call.plain()

    @patch("os:get_terminal_size", why="how wide the terminal is, is asked of rank 0's")
    def terminal_size(self, call: Call) -> Any:
        """Return rank 0's size as it was at the start; `shutil.get_terminal_size` asks this."""
        # a C function: it takes no names, and has no signature
        number = call.args[0] if call.args else 1
        if (
            not self.rank
            or not self.size
            or number not in STANDARD
            or not self.effects.context.in_job()
        ):
            return call.plain()
        size = self.size[number]
        if size is None:
            raise OSError(25, "Inappropriate ioctl for device")
        return os.terminal_size(size)

    @patch("os:read", why="what is typed is read once, on rank 0's terminal, for all", hot=True)
    def read_once(self, original: Callable[[int, int], bytes]) -> Callable[[int, int], bytes]:
        """Make an `os.read` by which rank 0 reads standard input for all ranks."""
        effects = self.effects

        @stands_for(original)
        def read(fd: int, length: int, /) -> bytes:
            if fd != 0 or effects.users() is not Mode.SYNCED:
                return original(fd, length)
            with self._prompting():
                return bytes(effects.ask_rank0("os.read", lambda: original(fd, length)))

        return read

    @patch("select:select", why="whether something was typed is asked of rank 0's terminal")
    def wait_once(self, call: Call) -> Any:
        """Wait on rank 0 for all ranks if standard input is among the objects to wait for."""
        if not call.args or not any(_is_input(one) for one in call.args[0]):
            return call.plain()
        if self.effects.users() is not Mode.SYNCED:
            return call.plain()
        asked = [list(some) for some in call.args[:3]]

        def ready() -> list[list[int]]:
            found = call.wrapped(*asked, *call.args[3:], **call.kwargs)
            return [
                [at for at, one in enumerate(some) if any(one is other for other in those)]
                for some, those in zip(asked, found, strict=True)
            ]

        with self._prompting():
            answer = self.effects.ask_rank0("select", ready)
        return tuple([some[at] for at in those] for some, those in zip(asked, answer, strict=True))

    @patch(
        "pdb:Pdb.__init__",
        why="the debugger steps over what is ours, which one process would not show",
    )
    def step_over_us(self, call: Call) -> Any:
        """Have the debugger skip `OURS`; its prompt asks by `input`, and so steers all ranks."""
        return (
            call.changed(skip=[*(call.named.get("skip") or ()), *OURS])
            if call.named
            else call.plain()
        )

    def _share_input(self, undo: ExitStack) -> None:
        """Replace `sys.stdin`, so that `for line in sys.stdin` reads once, for all ranks, too."""
        if isinstance(sys.stdin, io.TextIOBase):
            undo.callback(setattr, sys, "stdin", sys.stdin)
            sys.stdin = SharedStdin(
                sys.stdin, self.effects, bool(self.terminal[0]), self._prompting
            )

    def _look_alike(self, number: int, stream: Any, undo: ExitStack) -> None:
        """Have a log say that it is a terminal if rank 0's is: so colours and bars agree."""
        if hasattr(stream, "__dict__") and "isatty" not in vars(stream):
            answer = self.terminal[number]
            stream.isatty = lambda: answer
            undo.callback(delattr, stream, "isatty")


def _is_input(one: Any) -> bool:
    return one == 0 if isinstance(one, int) else one is sys.stdin or one is sys.__stdin__


def _is_standard(args: tuple[Any, ...]) -> bool:
    number = args[0] if args else None
    return (
        number in STANDARD
        if isinstance(number, int)
        else number in (sys.stdin, sys.stdout, sys.stderr)
    )


def _spelled(settings: Iterable[Any]) -> list[Any]:
    """Spell what `tcgetattr` returned for JSON: bytes as hexadecimal text."""
    *flags, keys = settings
    return [*flags, [key.hex() if isinstance(key, bytes) else key for key in keys]]


def _read(answer: Iterable[Any]) -> list[Any]:
    """Read what `_spelled` made."""
    *flags, keys = answer
    return [*flags, [bytes.fromhex(key) if isinstance(key, str) else key for key in keys]]


def terminal() -> list[list[Any]]:
    """Return whether each of the three standard streams is a terminal, and their sizes or None."""
    return [[_is_terminal(n) for n in STANDARD], [_size(n) for n in STANDARD]]


def _is_terminal(number: int) -> bool:
    return os.isatty(number)


def _size(number: int) -> list[int] | None:
    try:
        return list(os.get_terminal_size(number))
    except OSError:
        return None  # the stream is no terminal
