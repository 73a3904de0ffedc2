"""Decisions are counted, and printed once with the user's line."""

from __future__ import annotations

import io
import sysconfig
from contextlib import ExitStack

import pytest

from autoddp.errors import BadInput
from autoddp.report import Report, is_own, is_users, users_line


def test_a_decision_is_printed_once_and_counted():
    stream = io.StringIO()
    report = Report(speaks=True, stream=stream)
    for _ in range(3):
        report.say_once("loaders", "train.py:41", "rows: 64 → 16 on each of 4 ranks")
    report.say_once("loaders", "", "no place")
    assert stream.getvalue() == (
        "[autoddp] train.py:41: rows: 64 → 16 on each of 4 ranks\n[autoddp] no place\n"
    )
    assert [decision.count for decision in report.of("loaders")] == [3, 1]
    report.speaks = False
    report.say_once("loaders", "", "another rank's")
    assert len(report.of("loaders")) == 3
    assert "another" not in stream.getvalue()


def test_the_users_line_is_found_through_libraries():
    library = f"{sysconfig.get_paths()['stdlib']}/json/made_up.py"
    code = compile("def call(f):\n    return f()\n", library, "exec")
    names: dict = {}
    exec(code, names)
    where = names["call"](lambda: users_line())
    assert where.startswith("test_report.py:")
    assert not is_users(library)
    assert is_users("/home/me/train.py")
    assert not is_users("/home/me/sitecustomize.py")
    assert not is_users("<frozen runpy>")


@pytest.mark.parametrize("name", ["<stdin>", "<string>", "<ipython-input-7-0a>", "<timed exec>"])
def test_interactive_code_is_the_users(name):
    """The last one is the name of a cell with `%%time`."""
    assert is_own(name)
    assert not is_own("<frozen importlib._bootstrap>")


def test_a_doubt_is_printed_once_or_raises_if_strict():
    stream = io.StringIO()
    report = Report(speaks=True, stream=stream)
    for _ in range(2):
        report.doubt("loaders", "train.py:3", "each rank draws its own")
    assert stream.getvalue() == "[autoddp] train.py:3: each rank draws its own\n"
    with pytest.raises(BadInput, match=r"^--strict: train\.py:3: each rank draws its own$"):
        Report(strict=True).doubt("loaders", "train.py:3", "each rank draws its own")


def test_lines_bypass_captures_of_the_scripts_output():
    stream, kept = io.StringIO(), []
    report = Report(speaks=True, stream=stream)
    report.begun.watch(stream, ExitStack())
    plain = stream.write
    stream.write = lambda text: kept.append(text) or plain(text)
    print("epoch 1", file=stream)
    report.say("ours")
    assert "".join(kept) == "epoch 1\n"
    assert stream.getvalue() == "epoch 1\n[autoddp] ours\n"
