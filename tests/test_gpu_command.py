"""`python -m tests.gpu` itself, at its smallest sizes, on the CPU and on the simulated device."""

from __future__ import annotations

from functools import partial
from threading import Lock

import pytest

from tests.accelerator import jobs
from tests.gpu import checks, machine, speed
from tests.gpu.__main__ import main
from tests.support.warm import PLAIN_ENV

pytestmark = pytest.mark.slow
ONE = Lock()


def forked(parent, told, trial, seconds, place="."):
    """As `machine.run`, by a fork of a process with torch, but for torchrun and for modules."""
    if told[1] == "-m" and told[2] != "autoddp":
        return machine.run(told, trial, seconds, place)
    words = ["autoddp", *told[3:]] if told[1] == "-m" else ["python", *told[1:]]
    folder, env = trial.folder / place, machine.environ(trial.tiny) | PLAIN_ENV
    with ONE:
        done = parent.run(*words, folder=folder, timeout=4 * seconds, env=env)
    return machine.Done(done.code, done.out, done.err, 0.0, folder)


def few_ways(ways, kind, *rest):
    """Those of a kind of model; by hand one kind alone, as torchrun imports torch anew."""
    found = ways(kind, *rest)
    return {way: told for way, told in found.items() if kind == "gpt2" or "by hand" not in way}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["", "simulated"])
def test_every_part_passes_or_is_not_here(kind, warm, tmp_path, monkeypatch):
    if kind and (reason := jobs.lacking()):
        pytest.skip(reason)
    environ = jobs.environ({"SIMULATED_DEVICES": "2"}) if kind else {}
    # tests/accelerator/test_jobs.py has the others, and tests/test_faults.py the ends on CPUs
    few = ["equal batchnorm", "in_flight"] if kind else ["equal prefetcher", "decorated"]
    monkeypatch.setattr(checks, "CHECKS", [c for c in checks.CHECKS if c.name in few])
    ends = {name: end for name, end in checks.ENDS.items() if kind and name != "stopped"}
    monkeypatch.setattr(checks, "ENDS", ends)
    monkeypatch.setattr(speed, "_ways", partial(few_ways, speed._ways))
    for module in (checks, speed):
        monkeypatch.setattr(module, "run", partial(forked, jobs.parent() if kind else warm))
    out = tmp_path / "gpu.md"
    with monkeypatch.context() as patch:  # undone before the environment is compared
        for name, value in environ.items():
            patch.setenv(name, value)
        # speed is tried on the device alone: a run in each way
        words = ["--tiny", "--rounds", "1", "--seconds", "1350", "--out", str(out)]
        code = main([*words, *([] if kind else ["--only", "right"])])
    page = out.read_text()
    print(page)
    assert code == 0, page
    missing = [line for line in page.splitlines() if "not here" in line]
    assert len(missing) == (0 if kind else 2), missing  # streams, and waits for a device
    ways = [page.count(f"| {way}, 2 ranks |") for way in ("autoddp", "DDP by hand")]
    assert ways == ([3, 1] if kind else [0, 0])
    assert "no figure here means anything" in page
