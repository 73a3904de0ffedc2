# ruff: noqa: SIM115 - the standard streams stay open
import getpass
import os
import pty
import select
import shutil
import sys
import termios
from functools import partial

import pytest

from autoddp.effects.console import ONLY_RANK_0, Console
from tests.effects.outward import on_ranks, raised
from tests.support.terminal import in_pipe, in_terminal

pytestmark = pytest.mark.slow


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
    assert (
        on(lambda run: (sys.stdin.read(2), sys.stdin.read()), 2, "abcd\n") == [("ab", "cd\n")] * 2
    )


def test_the_login_name_is_rank_0s_and_called_so(on):
    """A script, or a library for it, names its folders by it."""
    library = {}
    source = "import getpass\ndef user():\n    return getpass.getuser()\n"
    exec(compile(source, "/usr/lib/python3/site-packages/library.py", "exec"), library)

    def script(run):
        os.environ["LOGNAME"] = f"user{run.world.rank}"
        seen = getpass.getuser(), library["user"]()
        return *seen, raised(getpass.getuser if run.world.rank else input)

    zero, one = on(script, typed="a\n")
    assert one[2][0] == "Disagreement"
    assert one[2][1].startswith("rank 1 is in «getpass.getuser at ")
    assert zero == ("user0", "user0", ("", ""))
    assert one[:2] == ("user0", "user0")
    (row,) = [row for row in Console.patches() if "getpass:getuser" in row.targets]
    assert row.why.startswith("the login name")


def test_an_interrupted_question_is_interrupted_everywhere(on):
    def script(run):
        def interrupted(prompt=""):
            raise KeyboardInterrupt

        return raised(lambda: run.effects.ask_rank0("input", interrupted))[0]

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


def test_in_the_local_view_each_rank_has_its_own_input(on):
    def script(run):
        return input() if run.world.rank == 0 else raised(input)[0]

    assert on(script, 2, "a\n", view="local") == ["a", "EOFError"]


def test_bytes_that_are_typed_reach_all_ranks(on):
    def script(run):
        raw = sys.stdin.buffer
        return raw.readline(), raw.peek(1)[:1], raw.read(2), list(raw), raw.read(), sys.stdin.read()

    lines = (b"a\n", b"b", b"b\n", [b"c\n", b"d\n", b"e"], b"", "")
    assert on(script, 3, "a\nb\nc\nd\ne") == [lines] * 3


def test_a_descriptor_is_read_once(on):
    assert (
        on(lambda run: (os.read(0, 2), os.read(0, 9), os.read(0, 1)), 2, "abc")
        == [(b"ab", b"c", b"")] * 2
    )


@pytest.mark.parametrize(
    "act",
    [lambda: select.select([sys.stdin], [], [], 0), lambda: raised(lambda: termios.tcgetattr(0))],
    ids=["select.select", "termios.tcgetattr"],
)
def test_what_else_is_asked_of_the_terminal_is_each_ranks_and_that_is_said(on, act, request):
    def script(run):
        select.select([], [], [], 0)
        act()
        return [decision.what for decision in run.report.of("console")]

    name = request.node.callspec.id
    assert on(script) == [[f"{name}: {ONLY_RANK_0}"]] * 2


# ---- the command, beside python, in a real terminal and in a pipe

EVERY_WAY = """
import ctypes, getpass, logging, os, select, shutil, subprocess, sys, termios, tty, warnings
import tqdm
print("printed", flush=True)
sys.stdout.write("written\\n"); sys.stdout.flush()
sys.stdout.buffer.write(b"bytes\\n"); sys.stdout.flush()
os.write(1, b"by descriptor\\n")
logging.basicConfig(); logging.warning("logged")
warnings.warn("warned")
ctypes.CDLL(None).puts(b"from C"); ctypes.CDLL(None).fflush(None)
subprocess.run(["echo", "by a program"])
for _ in tqdm.tqdm(range(3), mininterval=0, bar_format="{l_bar}{bar}|"): pass
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
Console().print("[bold red]rich[/] text")
with Progress(TextColumn("{task.completed}"), BarColumn(), auto_refresh=False) as bar:
    task = bar.add_task("", total=2)
    for _ in range(2):
        bar.advance(task); bar.refresh()
print(sys.stdin.isatty(), sys.stdout.isatty(), os.isatty(2), tuple(shutil.get_terminal_size()))
"""

KEYBOARD = """
import getpass, os, sys
name = input("name? ")
word = getpass.getpass("word? ")
print(name, word)
print("line?", flush=True)
print(repr(sys.stdin.readline()), repr(sys.stdin.buffer.readline()), repr(os.read(0, 10)))
try:
    input("end? ")
except EOFError as error:
    print("EOF", error)
"""
KEYS = [
    *(
        ("name? ", "me\n"),
        ("word? ", "secret\n"),
        ("line?", "one\n"),
        ("one", "two\n"),
        ("two", "three\n"),
    ),
    ("end? ", "\4"),
]

DEBUGGED = """
import torch
def double(x):
    y = x * 2
    return y
model = torch.nn.Linear(4, 4)
x = torch.ones(8, 4)
breakpoint()
out = double(x)
loss = model(out).sum()
print("went on", flush=True)
"""
COMMANDS = ["s", "s", "n", "p y.shape", "n", "n", "n", "p loss.shape", "x = 3", "p x", "c"]

INTERACTIVE = """
import code
x = 3
code.interact(local=globals(), banner="hi")
print("after", x)
"""


@pytest.fixture
def command(tmp_path):
    """`command(how, source)`: the same by python, by 2 ranks, and what these wrote to logs."""

    def run(how, source, **more):
        script = tmp_path / "script.py"
        script.write_text(source)
        ranks = (
            "autoddp",
            "run",
            "-q",
            "--nproc",
            "2",
            "--log-dir",
            str(tmp_path / "logs"),
            str(script),
        )
        alone = how("python", str(script), folder=tmp_path / "alone", **more)
        got = how(*ranks, folder=tmp_path / "ranks", **more)
        return alone, got, (tmp_path / "logs" / "rank1.log").read_text()

    return run


def test_a_terminal_shows_what_python_shows(command):
    alone, got, log = command(in_terminal, EVERY_WAY)
    assert got == alone
    assert alone[0] == 0
    assert "from C" in alone[1]
    assert alone[1].endswith("True True True (80, 24)\n")
    for line in (
        "written",
        "bytes",
        "by descriptor",
        "logged",
        "from C",
        "rich",
        "True True True (80, 24)",
    ):
        assert line in log
    assert "by a program" not in log


def test_a_pipe_gets_what_python_gives_it_in_the_same_order(command):
    alone, got, log = command(
        in_pipe, EVERY_WAY + "print('a')\nprint('b', file=sys.stderr)\nprint('c')\n"
    )
    assert got == alone
    assert alone[0] == 0
    assert log.endswith("a\nb\nc\n")


def test_what_is_typed_in_a_terminal_is_read_as_python_reads_it(command):
    alone, got, _ = command(in_terminal, KEYBOARD, typed=KEYS)
    assert got == alone
    assert alone[0] == 0
    assert "secret\nline?" in alone[1]  # which was not shown as it was typed


@pytest.mark.parametrize(
    ("commands", "code"),
    [(COMMANDS, 0), (["p x.sum()", "q"], 1), (["\4"], 1)],
    ids=["steps", "quits", "ends"],
)
def test_what_is_typed_at_pdb_steers_all_ranks(command, commands, code):
    typed = [("(Pdb) ", keys if keys == "\4" else keys + "\n") for keys in commands]
    alone, got, log = command(in_terminal, DEBUGGED, typed=typed)
    assert got == alone
    assert "autoddp" not in alone[1]
    if sys.version_info < (3, 14):  # which asks before it quits
        assert alone[0] == code
    assert ("went on" in alone[1]) == ("went on" in log) == (code == 0)


def test_an_interactive_prompt_is_everybodys(command):
    typed = [(">>> ", "x += 1\n"), (">>> ", "print(x)\n"), (">>> ", "\4")]
    alone, got, log = command(in_terminal, INTERACTIVE, typed=typed)
    assert got == alone
    assert "after 4" in alone[1]
    assert "after 4" in log


@pytest.mark.parametrize("lines", [0, 1])
def test_a_reader_that_leaves_ends_the_job_as_it_ends_python(command, lines):
    source = "for n in range(99999):\n    print(n, 'x' * 50)\n"
    alone, got, _ = command(partial(in_pipe, lines=lines), source)
    assert got == alone
    assert alone[0] == 1


def test_a_stream_of_the_scripts_own_is_muted_too(on, tmp_path):
    """`sys.stdout = Tee(...)`, which has `write` and `flush` alone."""

    class Tee:
        def __init__(self):
            self.seen = []

        def write(self, text):
            self.seen.append(text)

        def flush(self):
            self.seen.append("flush")

    def script(run):
        sys.stdout = tee = Tee()
        print("one")
        print("two")
        return [text for text in tee.seen if text.strip() and text != "flush"]

    assert on(script) == [["one", "two"]] * 2
