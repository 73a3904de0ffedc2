"""Lines of autoddp and bars of tqdm and rich on a terminal do not disturb each other."""

from __future__ import annotations

import re

import pytest

from tests.support.terminal import in_terminal, screen_of

SAID = ["[autoddp] first", "[autoddp] second"]
BEGIN = """
import sys
from contextlib import ExitStack
from autoddp.report import Report
from autoddp.report.begun import OpenLine
report = Report(speaks=True)
report.begun = OpenLine(report.release_between)
for stream in (sys.stdout, sys.stderr):
    report.begun.watch(stream, ExitStack())
"""
TQDM = """
from tqdm import tqdm
for step in tqdm(range(4), desc="steps", mininterval=0):
    if step == 2:
        report.say_between("first")
        report.say("second")
"""
BETWEEN = """
print("loss", end=" ", flush=True)
report.say_between("first")
from tqdm import tqdm
for step in tqdm(range(4), desc="steps", mininterval=0, leave=False):
    print(step, end=" ", flush=True)
print()
report.say("second")
"""
RICH = """
import time
from rich.progress import track
for step in track(range(4), description="steps"):
    time.sleep(0.06)
    if step == 2:
        report.say_between("first")
        report.say("second")
"""


def shown(tmp_path, script):
    (tmp_path / "script.py").write_text(BEGIN + script)
    code, text = in_terminal("python", str(tmp_path / "script.py"), folder=tmp_path)
    assert code == 0, text
    return text, screen_of(text)


def test_a_line_goes_above_a_bar(tmp_path):
    text, screen = shown(tmp_path, TQDM)
    assert screen[:2] == SAID
    assert screen[2].startswith("steps: 100%")
    assert screen[3:] == [""]
    assert text.index("steps:") < text.index("first") < text.index("75%")


def test_a_bar_in_a_file_is_not_drawn_again(tmp_path):
    """In a file, each drawing would add a line."""
    script, log = tmp_path / "script.py", tmp_path / "log"
    script.write_text(BEGIN + TQDM)
    code, _ = in_terminal("python", str(script), folder=tmp_path, err=log)
    drawn = log.read_bytes().decode().split("\r")[1:]
    assert code == 0
    assert [re.findall(r"\d+%", bar) for bar in drawn[:5]] == [[f"{25 * n}%"] for n in range(5)]
    assert drawn[2].split("\n")[1:] == [*SAID, ""]


def test_delayed_lines_are_not_printed_between_bars(tmp_path):
    _, screen = shown(tmp_path, BETWEEN)
    assert [line for line in screen if line.startswith("[autoddp]")] == SAID
    assert not any("[autoddp]" in line for line in screen if line not in SAID)


def test_a_line_goes_above_a_display_of_rich(tmp_path):
    text, screen = shown(tmp_path, RICH)
    assert screen[:2] == SAID
    assert screen[2].startswith("steps ")
    assert "100%" in screen[2]
    assert screen[3:] == [""]
    assert text.index("steps") < text.index("first") < text.index("100%")


TRAINS = """
import signal, sys
import torch, autoddp
from tqdm import tqdm
model, x = torch.nn.Linear(4, 1), torch.randn(8, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for epoch in tqdm(range(2), desc="epochs", mininterval=0):
    for step in tqdm(range(4), desc="steps", mininterval=0, leave=False):
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
        if epoch and step == 2 and "stop" in sys.argv:
            breakpoint()
        if epoch and step == 2 and "kill" in sys.argv and autoddp.rank() == 1:
            signal.raise_signal(signal.SIGKILL)
        if epoch and step == 3 and "raise" in sys.argv:
            raise ValueError("no more")
"""


@pytest.fixture
def ranks(tmp_path):
    """`ranks(*arguments)`: the screen of a terminal after a training script on 2 ranks."""

    def run(*argv, options=(), **more):
        (tmp_path / "train.py").write_text(TRAINS)
        command = ("autoddp", "run", "--nproc", "2", *options, "train.py", *argv)
        _, text = in_terminal(*command, folder=tmp_path, **more)
        return text, screen_of(text)

    return run


@pytest.mark.slow
def test_ranks_leave_no_dead_bar(ranks):
    _, screen = ranks()
    bar, *more = [line for line in screen if line and not line.startswith("[autoddp] ")]
    assert bar.startswith("epochs: 100%")
    assert more == []


@pytest.mark.slow
def test_lines_of_the_launcher_begin_on_a_new_line(ranks):
    _, screen = ranks("kill")
    told = "[autoddp] rank 1 was killed by SIGKILL (signal 9)"
    assert [line for line in screen if line.startswith(told)], screen


@pytest.mark.slow
def test_a_report_comes_before_a_traceback(ranks):
    text, screen = ranks("raise")
    assert text.rindex("[autoddp] ") < text.index("Traceback")
    assert "ValueError: no more" in screen


@pytest.mark.slow
def test_no_line_is_printed_during_a_prompt(ranks):
    typed = [("(Pdb) ", "c\n")]
    text, _ = ranks("stop", options=("--hang-timeout", "2"), typed=typed, think=5)
    assert "has waited" not in text.partition("(Pdb)")[2]
    assert "(Pdb) c\n" in text
