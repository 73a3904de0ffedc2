"""`python -m tests.gpu` itself, at its smallest sizes and without a GPU: it tells what is wrong."""

from __future__ import annotations

import pytest

from tests.gpu import checks, speed
from tests.gpu.checks import CHECKS, Result
from tests.gpu.machine import Machine
from tests.gpu.page import page

pytestmark = pytest.mark.slow

NONE = Machine([], "2", "None", "None")


def test_a_script_is_compared_with_one_process(tmp_path):
    exact = next(check for check in CHECKS if check.name == "exact")
    result = checks.compare(exact, NONE, True, tmp_path)
    assert (result.state, float(result.seen) < 1e-9) == ("passed", True), result


def test_the_page_has_every_check_and_every_way(tmp_path, monkeypatch):
    monkeypatch.setattr(speed, "KINDS", {"mlp": speed.KINDS["mlp"]})
    rows = speed.all_of(NONE, True, 1, tmp_path, lambda text: None)
    assert [row.way for row in rows] == [
        "python",
        "autoddp, 1 rank",
        "DDP by hand, 2 ranks",
        "autoddp, 2 ranks",
    ]
    assert not [(row.way, row.failed) for row in rows if row.failed]
    assert all(
        row.figures["steps_per_s"] > 0 and row.figures["first_step_s"] > 0 for row in rows
    ), rows
    assert [row.against is None for row in rows] == [True, False, True, False]
    text = page(NONE, [Result("exact", "in float64", "passed", "1e-15", 2.0)], rows, "1.0")
    assert "| in float64 | passed | 1e-15 | 2.0 |" in text
    assert all(f"| {row.way} |" in text for row in rows)
    assert all(line.endswith("|  |") for line in text.splitlines() if " python | " in line), (
        "no GPU counted"
    )
    assert "no figure here means anything" in page(NONE, [], rows, "1.0", tiny=True)
    assert "no figure here means anything" not in text
