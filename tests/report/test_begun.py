"""Lines of ours wait until the script has ended the line that it has begun."""

from __future__ import annotations

import io
from contextlib import ExitStack

import pytest

from autoddp.report import Report
from autoddp.report.begun import Begun


class Terminal:
    def __init__(self):
        self.bytes = io.BytesIO()
        self.out, self.err = (io.TextIOWrapper(self.bytes, write_through=True) for _ in range(2))
        self.report = Report(speaks=True, stream=self.err)
        self.report.begun = self.begun = Begun(self.report.release)

    @property
    def text(self):
        return self.bytes.getvalue().decode()


@pytest.fixture
def terminal():
    with ExitStack() as undo:
        made = Terminal()
        for stream in (made.out, made.err):
            made.begun.watch(stream, undo)
        yield made


def test_a_line_that_is_begun_is_not_cut_in_two(terminal):
    print("loss", end=" ", file=terminal.out)
    terminal.report.say_between("split: Net")
    terminal.report.say_between("gathers: cat")
    print(0.5, file=terminal.out)
    assert terminal.text == "loss 0.5\n[autoddp] split: Net\n[autoddp] gathers: cat\n"


def test_a_bar_is_not_left_dead(terminal):
    for step in range(3):
        terminal.err.write(f"\r{step} of 3")
        if not step:
            terminal.report.say_between("split: Net")
    terminal.err.write("\n")
    assert terminal.text == "\r0 of 3\r1 of 3\r2 of 3\n[autoddp] split: Net\n"


def test_a_bar_that_was_cleared_is_none(terminal):
    terminal.err.write("\r0 of 3")
    terminal.err.write("\r      \r")
    terminal.report.say_between("split: Net")
    assert terminal.text.endswith("\r[autoddp] split: Net\n")


def test_what_is_held_is_said_at_the_end_and_what_cannot_wait_at_once(terminal):
    terminal.out.write("half")
    terminal.report.say_between("split: Net")
    terminal.report.say("a rank was killed")
    terminal.report.release()
    assert terminal.text == "half\n[autoddp] a rank was killed\n[autoddp] split: Net\n"


def test_streams_are_as_they_were():
    stream = io.TextIOWrapper(io.BytesIO())
    with ExitStack() as undo:
        Begun(lambda: None).watch(stream, undo)
        assert "write" in vars(stream)
    assert "write" not in vars(stream)
