"""A command in a terminal of its own, or with its output in a pipe, forked from this process."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

from tests.support.warm import PLAIN_ENV, _autoddp, _python, leftover


def in_terminal(
    *argv: str,
    folder: Path,
    typed: Sequence[tuple[str, str]] = (),
    timeout: float = 120,
    err: Path | None = None,
    think: float = 0,
) -> tuple[int, str]:
    """Exit code and all that the terminal showed, of `python SCRIPT` or `autoddp run ...`.

    `typed` says what to wait for and what then, `think` seconds later, to type; `err` is a file for
    standard error.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pid, screen = pty.fork()
    if pid == 0:
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        if err is not None:
            os.dup2(os.open(err, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 2)
        _be(argv, folder)
    seen, waiting, deadline = "", list(typed), time.monotonic() + timeout
    try:
        while True:
            ready = select.select([screen], [], [], max(0, deadline - time.monotonic()))[0]
            assert ready, f"{' '.join(argv)} hangs\n{seen}"
            try:
                data = os.read(screen, 65536)
            except OSError:
                data = b""  # nobody has the terminal open any more
            if not data:
                break
            seen += data.decode()
            while waiting and waiting[0][0] in seen[seen.rfind("\0") + 1 :]:
                time.sleep(think)
                os.write(screen, waiting.pop(0)[1].encode())
                seen += "\0"  # what was waited for next comes after
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        pid = 0
    finally:
        if pid:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(screen)
    assert not waiting, f"{waiting[0][0]!r} did not come\n{seen}"
    return code, seen.replace("\0", "").replace("\r\n", "\n")


ORDER = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])")


def screen_of(text: str) -> list[str]:
    """The lines that a terminal shows of what `in_terminal` returns."""
    lines, row, column = [""], 0, 0
    while text:
        order = ORDER.match(text)
        if order is None:
            letter, text = text[0], text[1:]
            if letter == "\n":
                row, column = row + 1, 0
                lines += [""] * (row == len(lines))
            elif letter == "\r":
                column = 0
            else:
                line = lines[row].ljust(column)
                lines[row], column = line[:column] + letter + line[column + 1 :], column + 1
            continue
        text, (count, what) = text[order.end() :], order.groups()
        if what == "A":
            row -= int(count or 1)
        elif (count, what) == ("2", "K"):
            lines[row] = ""
    return [line.rstrip() for line in lines]


def in_pipe(*argv: str, folder: Path, lines: int | None = None) -> tuple[int, str]:
    """Exit code and what came through one pipe from both streams.

    With `lines`, the pipe's reader leaves after so many, and standard error goes to a file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    mine, theirs = os.pipe()
    errors = folder / "errors"
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.dup2(theirs, 1)
        os.dup2(theirs if lines is None else os.open(errors, os.O_WRONLY | os.O_CREAT, 0o600), 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.close(mine)
        os.close(theirs)
        _be(argv, folder)
    os.close(theirs)
    with open(mine) as reader:
        seen = reader.read() if lines is None else "".join(reader.readline() for _ in range(lines))
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert not leftover(pid), f"{' '.join(argv)} left processes behind"
    return code, seen + (errors.read_text() if errors.exists() else "")


def _be(argv: Sequence[str], folder: Path) -> None:
    """In the fork: the command, with standard streams as a fresh interpreter has them."""
    code: object = 1
    try:
        os.chdir(folder)
        os.environ.update(PLAIN_ENV, COLUMNS="80", LINES="24", TERM="xterm")
        _leave_pytest()
        sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115
        sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = sys.__stderr__ = open(2, "w", 1, closefd=False)  # noqa: SIM115
        {"python": _python, "autoddp": _autoddp}[argv[0]](list(argv[1:]))
        code = 0
    except SystemExit as left:
        code = left.code
        if isinstance(code, str):
            print(code, file=sys.stderr)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


def _leave_pytest() -> None:
    """What it has put in the place of Python's own."""
    logging.root.handlers.clear()
    warnings.resetwarnings()
    warnings.simplefilter("default")
    sys.breakpointhook = sys.__breakpointhook__
    sys.modules.pop("pdb", None)
