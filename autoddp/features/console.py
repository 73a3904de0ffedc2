"""The terminal is rank 0's: what is typed there reaches all ranks, and all decide by it alike."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar

from autoddp.outside.effects import Call, Effects, Mode, Outward
from autoddp.patching import patch

STANDARD = (0, 1, 2)


class Console(Outward):
    """Input is read once; ranks whose output goes to a log format it as rank 0 does."""

    name: ClassVar[str] = "console"

    def setup(self, undo: ExitStack) -> None:
        """Ask rank 0 once what its terminal is like; mute prints in trials."""
        super().setup(undo)
        trials = self.run.view.trials
        trials.append(muted)
        undo.callback(trials.remove, muted)
        self.terminal: list[bool] = []
        self.size: list[list[int] | None] = []
        if self.effects.exchange:
            told = self.run.group.effect("the terminal", terminal)
            self.terminal, self.size = told
            self._share_input(undo)
        if self.terminal and self.rank:
            for number, stream in ((1, sys.stdout), (2, sys.stderr)):
                self._look_alike(number, stream, undo)

    @patch("builtins:input", why="what is typed is read once, on rank 0's terminal, for all")
    def ask_once(self, wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
        """Its end (Ctrl-D, Ctrl-C) is everybody's, too."""
        if self.effects.mode() is not Mode.AGREED:
            return wrapped(*args, **kwargs)
        return self.effects.answer("input", lambda: wrapped(*args, **kwargs))

    @patch(
        "getpass:getpass",
        "getpass:getuser",
        why="what is typed is read once, on rank 0's terminal, for all",
    )
    def ask_secretly(self, wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
        """It travels as everything else between ranks does: in the clear."""
        if self.effects.mode() is not Mode.AGREED:
            return wrapped(*args, **kwargs)
        return self.effects.answer("getpass", lambda: wrapped(*args, **kwargs))

    @patch("os:isatty", why="whether there is a terminal is asked of rank 0's")
    def is_terminal(self, wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
        """Of the three standard streams; others are this rank's own."""
        number = Call(wrapped, args, kwargs).named.get("fd")
        if self.rank and self.terminal and number in STANDARD and self.effects.at_home():
            return self.terminal[number]
        return wrapped(*args, **kwargs)

    @patch("os:get_terminal_size", why="how wide the terminal is, is asked of rank 0's")
    def terminal_size(self, wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
        """As it was at the start; `shutil.get_terminal_size` asks this."""
        number = args[0] if args else 1  # it is written in C, takes no names, and does not tell
        if not self.rank or not self.size or number not in STANDARD or not self.effects.at_home():
            return wrapped(*args, **kwargs)
        size = self.size[number]
        if size is None:
            raise OSError(25, "Inappropriate ioctl for device")
        return os.terminal_size(size)

    def _share_input(self, undo: ExitStack) -> None:
        """`for line in sys.stdin` is read once, too."""
        if isinstance(sys.stdin, io.TextIOBase):
            undo.callback(setattr, sys, "stdin", sys.stdin)
            sys.stdin = Input(sys.stdin, self.effects, self.terminal[0])

    def _look_alike(self, number: int, stream: Any, undo: ExitStack) -> None:
        """A log says that it is a terminal if rank 0's is one, so that colours and bars agree."""
        if hasattr(stream, "__dict__") and "isatty" not in vars(stream):
            answer = self.terminal[number]
            stream.isatty = lambda: answer
            undo.callback(delattr, stream, "isatty")


class Input(io.TextIOBase):
    """Standard input as all ranks see it: rank 0 reads."""

    def __init__(self, own: Any, effects: Effects, terminal: bool) -> None:
        self._own, self._effects, self._terminal = own, effects, terminal

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]
        """The next line, on all ranks."""
        return self._read("readline", lambda: self._own.readline(size))

    def read(self, size: int | None = -1, /) -> str:
        """What is left, on all ranks."""
        return self._read("read", lambda: self._own.read(size))

    def readable(self) -> bool:
        """It is."""
        return True

    def isatty(self) -> bool:
        """What rank 0's is."""
        return self._terminal

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def fileno(self) -> int:
        """This process's own."""
        return self._own.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """How it is decoded."""
        return self._own.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        """What becomes of what cannot be decoded."""
        return self._own.errors

    def close(self) -> None:
        """Close what is read."""
        self._own.close()

    def _read(self, what: str, act: Callable[[], str]) -> str:
        if self._effects.mode() is not Mode.AGREED:
            return act()
        return self._effects.answer(f"stdin.{what}", act)


@contextmanager
def discarded(stream: Any) -> Iterator[None]:
    """What is written to a stream is thrown away, by whoever holds it."""
    before = vars(stream).get("write")
    stream.write = len
    try:
        yield
    finally:
        if before is None:
            del stream.write
        else:
            stream.write = before


@contextmanager
def muted() -> Iterator[None]:
    """Nothing is printed, also not by what holds on to the streams."""
    with ExitStack() as undo:
        for stream in (sys.stdout, sys.stderr):
            if stream is None or stream.closed:
                continue
            stream.flush()  # what was printed before is to be seen
            for layer in (stream, getattr(stream, "buffer", None)):
                if hasattr(layer, "__dict__"):
                    undo.enter_context(discarded(layer))
        yield


def terminal() -> list[list[Any]]:
    """For the three standard streams: whether it is a terminal, and its size."""
    return [[_is_terminal(n) for n in STANDARD], [_size(n) for n in STANDARD]]


def _is_terminal(number: int) -> bool:
    return os.isatty(number)


def _size(number: int) -> list[int] | None:
    try:
        return list(os.get_terminal_size(number))
    except OSError:
        return None  # it is no terminal
