"""Decisions are counted, said once, and told with the user's line."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import sysconfig
from contextlib import ExitStack
from types import ModuleType

import pytest

from autoddp.errors import BadInput
from autoddp.report import Report, is_own, is_users, users_line, users_modules


def test_a_decision_is_said_once_and_counted():
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


def test_json_holds_all():
    report = Report()
    report.add("gather", "a.py:1", "numpy")
    report.add("gather", "a.py:1", "numpy")
    report.add("memory", "", "slow")
    found = json.loads(report.to_json(script="a.py"))
    assert found["script"] == "a.py"
    assert found["decisions"] == [
        {
            "kind": "gather",
            "where": "a.py:1",
            "what": "numpy",
            "count": 2,
            "size": 0,
            "line": "a.py:1",
        },
        {"kind": "memory", "where": "", "what": "slow", "count": 1, "size": 0, "line": None},
    ]


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
def test_what_is_typed_is_the_users_though_it_is_in_no_file(name):
    """The last is what `%%time` makes of a notebook's cell."""
    assert is_own(name)
    assert not is_own("<frozen importlib._bootstrap>")


def test_a_doubt_is_said_once_or_refused_if_strict():
    stream = io.StringIO()
    report = Report(speaks=True, stream=stream)
    for _ in range(2):
        report.doubt("loaders", "train.py:3", "each rank draws its own")
    assert stream.getvalue() == "[autoddp] train.py:3: each rank draws its own\n"
    with pytest.raises(BadInput, match=r"^--strict: train\.py:3: each rank draws its own$"):
        Report(strict=True).doubt("loaders", "train.py:3", "each rank draws its own")


def test_a_file_of_the_temporary_folder_is_looked_up_where_the_current_folder_is_gone(tmp_path):
    """A script that deletes the folder that it runs in goes on with full paths."""
    (tmp_path / "here").mkdir()
    code = (
        "import os, sys, tempfile\n"
        "from autoddp.report import is_users\n"
        "os.rmdir(os.getcwd())\n"
        "sys.path[:0] = ['', 'relative', tempfile.gettempdir() + '/mine']\n"
        "names = [f'{tempfile.gettempdir()}/{name}' for name in ('mine/x.py', 'other/x.py')]\n"
        "print([is_users(name) for name in names])\n"
    )
    command = [sys.executable, "-c", code]
    path = os.pathsep.join(folder for folder in sys.path if folder)
    env = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        command, cwd=tmp_path / "here", env=env, capture_output=True, text=True, check=False
    )
    assert done.stdout == "[True, False]\n", done.stderr


def test_a_line_that_comes_while_something_is_typed_is_said_after_it():
    stream = io.StringIO()
    report = Report(speaks=True, stream=stream)
    with report.prompting():
        report.say("another thread's")
        assert stream.getvalue() == ""
    assert stream.getvalue() == "[autoddp] another thread's\n"


def test_a_line_is_not_kept_by_what_keeps_what_the_script_prints():
    stream, kept = io.StringIO(), []
    report = Report(speaks=True, stream=stream)
    report.begun.watch(stream, ExitStack())
    plain = stream.write
    stream.write = lambda text: kept.append(text) or plain(text)
    print("epoch 1", file=stream)
    report.say("ours")
    assert "".join(kept) == "epoch 1\n"
    assert stream.getvalue() == "epoch 1\n[autoddp] ours\n"


def test_a_stream_may_be_anything_that_writes():
    class Handing:
        def __init__(self, stream):
            self.stream = stream

        def __getattr__(self, name):
            return getattr(self.stream, name)

    stream = io.StringIO()
    Report(speaks=True, stream=Handing(stream)).say("ours")
    assert stream.getvalue() == "[autoddp] ours\n"


def test_a_lazy_module_is_not_asked_for_its_file(monkeypatch):
    class Lazy(ModuleType):
        def __getattr__(self, name):
            raise ImportError(f"asked for {name}")

    monkeypatch.setitem(sys.modules, "lazy", Lazy("lazy"))
    monkeypatch.setitem(sys.modules, "none", None)
    monkeypatch.setitem(sys.modules, "own", own := ModuleType("own"))
    own.__file__ = "/home/me/own.py"
    assert own in users_modules()
