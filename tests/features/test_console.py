# ruff: noqa: SIM115 - the standard streams stay open
import logging
import os
import pty
import shutil
import sys

import pytest

from autoddp.features.console import Console
from tests.features.outward import on_ranks, raised, trial


@pytest.fixture
def on(tmp_path):
    def on(script, nproc=2, typed="", **more):
        """What `script` returns on 2 ranks, with `typed` on rank 0's standard input."""
        (tmp_path / "typed").write_text(typed)
        more.setdefault("before", give)
        return on_ranks(script, nproc, Console, folder=tmp_path, **more)

    return on


def give(rank):
    """As the worker does: rank 0 has the input, the others have none; they write to a log."""
    handle = os.open("typed" if rank == 0 else os.devnull, os.O_RDONLY)
    os.dup2(handle, 0)
    sys.stdin = open(0, closefd=False)
    log = os.open(f"log{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for number in (1, 2):
        os.dup2(log, number)
    sys.stdout = open(1, "w", closefd=False)
    sys.stderr = open(2, "w", closefd=False)


def test_what_is_typed_reaches_all_ranks(on):
    def script(run):
        return input("name? "), input(), sys.stdin.readline(), list(sys.stdin), raised(input)

    lines = ("a", "b", "c\n", ["d\n", "e"], ("EOFError", "EOF when reading a line"))
    assert on(script, 3, "a\nb\nc\nd\ne") == [lines] * 3


def test_the_whole_input_is_read_once(on):
    assert on(lambda run: (sys.stdin.read(2), sys.stdin.read()), 2, "abcd\n") == [("ab", "cd\n")] * 2


def test_an_interrupted_question_is_interrupted_everywhere(on):
    def script(run):
        def interrupted(prompt=""):
            raise KeyboardInterrupt

        return raised(lambda: run.effects.answer("input", interrupted))[0]

    assert on(script) == ["KeyboardInterrupt"] * 2


def test_ranks_that_write_to_a_log_decide_as_on_rank_0s_terminal(on):
    def terminal(rank):
        give(rank)
        if rank == 0:
            _, handle = pty.openpty()
            os.dup2(handle, 1)
            import fcntl
            import struct
            import termios

            fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 77, 0, 0))
            sys.stdout = open(1, "w", closefd=False)

    def script(run):
        os.environ.pop("COLUMNS", None)
        os.environ.pop("LINES", None)
        sys.__stdout__ = sys.stdout
        return (
            sys.stdin.isatty(),
            sys.stdout.isatty(),
            sys.stderr.isatty(),
            [os.isatty(n) for n in range(3)],
            tuple(shutil.get_terminal_size()),
            tuple(os.get_terminal_size(1)),
            raised(lambda: os.get_terminal_size(2)),
        )

    zero, one = on(script, before=terminal)
    assert zero == one
    assert zero[:6] == (False, True, False, [False, True, False], (77, 33), (77, 33))


def test_what_is_typed_on_a_terminal_reaches_all_ranks(on):
    def terminal(rank):
        give(rank)
        if rank == 0:
            keyboard, handle = pty.openpty()
            os.write(keyboard, b"me\n")
            for number in (0, 1):
                os.dup2(handle, number)
            sys.stdin = open(0, closefd=False)
            sys.stdout = open(1, "w", closefd=False)

    assert on(lambda run: input("name? "), before=terminal) == ["me", "me"]


def test_nothing_is_printed_in_a_trial(on, tmp_path):
    def script(run):
        log = logging.getLogger("x")
        log.addHandler(logging.StreamHandler())
        print("one")
        with trial(run):
            print("two", flush=True)
            print("three", file=sys.stderr)
            log.warning("four")
            sys.stdout.buffer.write(b"five")
        log.warning("six")
        print("seven", flush=True)
        return "write" in vars(sys.stdout)

    assert on(script) == [False, False]
    assert sorted((tmp_path / "log0").read_text().split()) == ["one", "seven", "six"]


def test_in_the_local_view_each_rank_has_its_own_input(on):
    def script(run):
        return input() if run.world.rank == 0 else raised(input)[0]

    assert on(script, 2, "a\n", view="local") == ["a", "EOFError"]
