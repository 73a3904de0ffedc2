"""The benchmark that README shows, run short: autoddp's numbers are one process's."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from benchmarks.peers import all_ways
from tests.support.cli import environ

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_every_way_is_measured_and_autoddps_numbers_are_one_processs(tmp_path):
    """By hand they are not, since other images are cropped and normalized together."""
    words = "-m benchmarks.peers --rounds 1 --epochs 1 --images 100 --json json --plot bars.svg"
    done = subprocess.run(
        [sys.executable, *words.split()],
        cwd=tmp_path,
        env=environ(),
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "json").read_text())["ways"]
    assert set(found) == {way.name for way in all_ways() if way.installed}
    same = {name: way["same"] for name, way in found.items()}
    assert same["python, all threads"]
    assert same["autoddp run"]
    assert not same["DDP by hand, torchrun"]
    assert all(f"<!-- {name} -->" in (tmp_path / "bars.svg").read_text() for name in found)
