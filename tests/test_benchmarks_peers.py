"""The benchmark that trains in five ways, run short: autoddp's numbers are one process's."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from benchmarks.peers import all_ways
from tests.support.cli import environ
from tests.test_peers import needs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

WAYS = {way.name: way for way in all_ways()}
LIBRARIES = [pytest.param(name, marks=needs(way.needs)) for name, way in WAYS.items()]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Its table, its JSON and its picture."""
    folder = tmp_path_factory.mktemp("peers")
    words = "-m benchmarks.peers --rounds 1 --epochs 1 --images 100 --json json --plot bars.svg"
    done = subprocess.run(
        [sys.executable, *words.split()],
        cwd=folder,
        env=environ(),
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((folder / "json").read_text())
    return done.stdout.splitlines(), found["ways"], (folder / "bars.svg").read_text()


def test_the_table_has_a_row_for_each(measured):
    lines, found, _ = measured
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert {len(row) for row in rows} == {len(rows[0])}
    assert [row[0] for row in rows[2:]] == list(WAYS)
    for row in rows[2:]:
        there = WAYS[row[0]].installed
        assert there == (row[0] in found)
        assert there == all(re.match(r"\d", cell) for cell in row[1:5])
        assert there or row[1] == f"{WAYS[row[0]].needs} is not installed: pip install '.[peers]'"


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_way_is_measured(name, measured):
    _, found, picture = measured
    (timing,) = found[name]["rounds"]
    assert 0 < timing["first"] < timing["wall"]
    assert timing["rate"] > 0
    assert f"<!-- {name} -->" in picture
    added, removed = found[name]["lines"]
    assert (added > 20 > removed / 2) == (WAYS[name].script != "plain.py")


def test_autoddps_numbers_are_one_processs(measured):
    """And by hand they are not, since other images are cropped and normalized together."""
    _, found, _ = measured
    same = {name: way["same"] for name, way in found.items()}
    assert same["python, all threads"]
    assert same["autoddp run"]
    assert found["autoddp run"]["difference"] > 0, "sums in another order differ by rounding"
    assert not same["DDP by hand, torchrun"]
    assert found["autoddp run"]["lines"] == [0, 0]
