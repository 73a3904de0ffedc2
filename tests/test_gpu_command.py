"""`python -m tests.gpu` itself, at its smallest sizes, on the CPU and on the simulated device."""

from __future__ import annotations

import pytest

from tests.accelerator import jobs
from tests.gpu import checks
from tests.gpu.__main__ import main

pytestmark = pytest.mark.slow


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["", "simulated"])
def test_every_part_passes_or_is_not_here(kind, tmp_path, monkeypatch):
    if kind and (reason := jobs.lacking()):
        pytest.skip(reason)
    environ = jobs.environ({"SIMULATED_DEVICES": "2"}) if kind else {}
    # tests/accelerator/test_jobs.py has the others, in forks
    few = ["equal batchnorm", "equal prefetcher", "in_flight"]
    few += [] if kind else ["decorated"]
    monkeypatch.setattr(checks, "CHECKS", [c for c in checks.CHECKS if c.name in few])
    out = tmp_path / "gpu.md"
    with monkeypatch.context() as patch:  # undone before the environment is compared
        for name, value in environ.items():
            patch.setenv(name, value)
        # speed is tried on the device alone: a run in each way, of each kind of model
        words = ["--tiny", "--rounds", "1", "--seconds", "1350", "--out", str(out)]
        code = main([*words, *([] if kind else ["--only", "right"])])
    page = out.read_text()
    print(page)
    assert code == 0, page
    missing = [line for line in page.splitlines() if "not here" in line]
    assert len(missing) == (0 if kind else 2), missing  # streams, and waits for a device
    ways = [page.count(f"| {way}, 2 ranks |") for way in ("autoddp", "DDP by hand")]
    assert ways == ([3, 3] if kind else [0, 0])
    assert "no figure here means anything" in page
