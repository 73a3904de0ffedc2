import sys
from functools import partial

import pytest

from tests.support.terminal import in_pipe, in_terminal

pytestmark = pytest.mark.slow


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
import getpass, sys
name = input("name? ")
word = getpass.getpass("word? ")
print(name, word)
print("line?", flush=True)
print(repr(sys.stdin.readline()), repr(sys.stdin.buffer.readline()))
try:
    input("end? ")
except EOFError as error:
    print("EOF", error)
"""
KEYS = [("name? ", "me\n"), ("word? ", "secret\n"), ("line?", "one\n"), ("one", "two\n")]
KEYS += [("end? ", "\4")]

SIZES = """
import os
for _ in range(2):
    try:
        os.get_terminal_size()
    except OSError as error:
        print(error)
"""

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


@pytest.fixture
def command(tmp_path):
    """`command(how, source)`: the output of python, of 2 ranks, and their logs."""

    def run(how, source, **more):
        script = tmp_path / "script.py"
        script.write_text(source)
        logs = tmp_path / "logs"
        ranks = ("autoddp", "run", "-q", "--nproc", "2", "--log-dir", str(logs), str(script))
        alone = how("python", str(script), folder=tmp_path / "alone", **more)
        got = how(*ranks, folder=tmp_path / "ranks", **more)
        assert got == alone
        return alone, (logs / "rank1.log").read_text()

    return run


def test_a_terminal_shows_the_output_of_python(command):
    alone, log = command(in_terminal, EVERY_WAY)
    assert alone[0] == 0
    assert "from C" in alone[1]
    assert alone[1].endswith("True True True (80, 24)\n")
    assert all(line in log for line in ("bytes", "logged", "from C", "True True True (80, 24)"))
    assert "by a program" not in log


def test_a_pipe_gets_the_output_of_python_in_the_same_order(command):
    source = EVERY_WAY + SIZES + "print('a')\nprint('b', file=sys.stderr)\nprint('c')\n"
    alone, log = command(in_pipe, source)
    assert alone[0] == 0
    assert log.endswith("a\nb\nc\n")


def test_terminal_input_is_read_as_by_python(command):
    alone, _ = command(in_terminal, KEYBOARD, typed=KEYS)
    assert alone[0] == 0
    assert "secret\nline?" in alone[1]  # which was not shown as it was typed


@pytest.mark.parametrize(
    ("commands", "code"),
    [(COMMANDS, 0), (["p x.sum()", "q"], 1)],
    ids=["steps", "quits"],
)
def test_pdb_commands_apply_to_all_ranks(command, commands, code):
    typed = [("(Pdb) ", keys if keys == "\4" else keys + "\n") for keys in commands]
    alone, log = command(in_terminal, DEBUGGED, typed=typed)
    assert "autoddp" not in alone[1]
    if sys.version_info < (3, 14):  # which asks before it quits
        assert alone[0] == code
    assert ("went on" in alone[1]) == ("went on" in log) == (code == 0)


def test_a_closed_pipe_ends_the_job_as_it_ends_python(command):
    source = "for n in range(99999):\n    print(n, 'x' * 50)\n"
    alone, _ = command(partial(in_pipe, lines=1), source)
    assert alone[0] == 1
