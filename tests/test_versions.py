"""The versions that the package names, and what `python -m tests.versions` makes of a run."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from autoddp.cli import tested
from tests.support.cli import ROOT, fork_cli


@pytest.fixture(scope="module")
def project():
    return tomllib.loads(Path(ROOT, "pyproject.toml").read_text())["project"]


def test_the_package_requires_the_oldest_tested_versions(project):
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


def test_env_shows_whether_these_versions_were_tested():
    assert tested.words("torch", "2.6.0+cu124", ("2.6", "2.7")) == (
        "torch 2.6, 2.7 (this one is among them)"
    )
    assert "is not among" in tested.words("Python", "3.14.1", tested.PYTHON)
    lines = fork_cli("env").out.splitlines()
    (line,) = [line for line in lines if line.startswith("tested with: torch ")]
    assert f"; Python {', '.join(tested.PYTHON)} (this one is" in line
