"""The versions that the package names, and what `python -m tests.versions` makes of a run."""

from __future__ import annotations

import platform
import re
import sys
import tomllib
from pathlib import Path

import pytest

from autoddp.cli import tested
from tests import versions
from tests.support.cli import ROOT, fork_cli
from tests.versions import Result

REPORT = """<?xml version="1.0"?><testsuites>
<testsuite name="pytest" errors="1" failures="2" skipped="3" tests="10" time="4.5"/></testsuites>"""


@pytest.fixture(scope="module")
def project():
    return tomllib.loads(Path(ROOT, "pyproject.toml").read_text())["project"]


def test_the_package_asks_for_the_oldest_versions_that_were_tested(project):
    assert f"torch>={tested.TORCH[0]}" in project["dependencies"]
    assert project["requires-python"] == f">={tested.PYTHON[0]}"
    words = "Programming Language :: Python :: "
    named = [x.removeprefix(words) for x in project["classifiers"] if x.startswith(words)]
    assert named == ["3", *tested.PYTHON]


@pytest.mark.parametrize("name", ["README.md", "docs/index.md"])
def test_pages_name_the_oldest_versions(name):
    text = " ".join(Path(ROOT, name).read_text().split())
    (python,) = re.findall(r"Python ([\d.]+) or later", text)
    (torch,) = re.findall(r"torch ([\d.]+) or later", text)
    assert (python, torch) == (tested.PYTHON[0], tested.TORCH[0])


def test_by_default_every_torch_runs_once_and_its_ends_on_every_python():
    found = versions.pairs(("2.6", "2.7", "2.8"), ("3.11", "3.12"), chosen=False)
    assert found == [
        *(("2.6", "3.11"), ("2.6", "3.12"), ("2.7", "3.11")),
        *(("2.8", "3.11"), ("2.8", "3.12")),
    ]
    assert len(versions.pairs(("2.6", "2.7", "2.8"), ("3.11", "3.12"), chosen=True)) == 6


def test_this_python_is_found_and_one_that_is_not_there_is_not():
    here = ".".join(platform.python_version_tuple()[:2])
    assert versions.interpreter(here) == sys.executable
    assert versions.interpreter("3.1") is None


def test_what_pytest_counts_is_read():
    assert versions.counted(REPORT) == (4, 3, 3)


def test_the_table_has_a_line_for_each_torch_and_a_column_for_each_python():
    results = {
        ("2.6", "3.11"): Result(4, 3, 2, 60.4),
        ("2.7", "3.12"): Result(why="not run: no Python 3.12 here", ran=False),
    }
    assert versions.table(results).splitlines() == [
        "| torch | Python 3.11 | Python 3.12 |",
        "| --- | --- | --- |",
        "| 2.6 | 4 passed, 3 failed, 2 skipped, 60 s |  |",
        "| 2.7 |  | not run: no Python 3.12 here |",
    ]


@pytest.mark.parametrize(("failed", "ran", "code"), [(0, True, 0), (1, True, 1), (0, False, 1)])
def test_the_exit_code_tells_of_failures(monkeypatch, capsys, failed, ran, code):
    monkeypatch.setattr(versions, "run", lambda *_: Result(1, failed, ran=ran))
    assert versions.main(["--torch", "2.6", "--python", "3.11", "--fast"]) == code
    assert capsys.readouterr().out.startswith("torch 2.6, Python 3.11: 1 passed")


def test_env_says_whether_the_versions_here_were_tested():
    assert tested.words("torch", "2.6.0+cu124", ("2.6", "2.7")) == (
        "torch 2.6, 2.7 (this one is among them)"
    )
    assert "is not among" in tested.words("Python", "3.14.1", tested.PYTHON)
    lines = fork_cli("env").out.splitlines()
    (line,) = [line for line in lines if line.startswith("tested with: torch ")]
    assert f"; Python {', '.join(tested.PYTHON)} (this one is" in line
