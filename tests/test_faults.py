"""Whatever happens to a job, in whatever it does: it ends soon, names its victim, leaves nothing.

A set of faults and phases in which each comes up; all of them together are tried by
`python -m benchmarks.faults`.
"""

from __future__ import annotations

import time

import pytest

from tests.support.faults import (
    SOON,
    Case,
    Laboratory,
    wrong,
)

pytestmark = pytest.mark.slow

# Each fault and each phase once at least, and each kind of wait that a rank can be lost from.
CHOSEN = (
    Case("start", "int-launcher"),
    Case("forward", "segv"),
    Case("loading", "kill-last", 3),
    Case("worker", "exit"),
    Case("worker", "kill-launcher"),
    Case("collective", "oom"),
    Case("collective", "int-group"),
    Case("save", "kill-first"),
    Case("save", "term-launcher"),
    Case("evaluation", "term-group"),
    Case("teardown", "raise-first"),
    Case("end", "raise-last"),
    Case("sample", "sample"),
    Case("thread", "raise-first"),
)


@pytest.fixture(scope="module")
def laboratory():
    return Laboratory()


@pytest.mark.parametrize("case", CHOSEN, ids=str)
def test_a_fault(laboratory, case, tmp_path):
    if case.fault == "oom" and not laboratory.limits:
        pytest.skip("no memory limit can be set here")
    ended = laboratory.run(case, tmp_path / "job")
    assert not wrong(case, ended), f"{ended.out}\n{ended.err}"


@pytest.mark.parametrize(
    ("source", "code", "says"),
    [
        ("print('out', flush=True)\nos._exit(0)\n", 0, ""),
        ("if autoddp.rank(): os._exit(0)\nprint('out')\n", 0, ""),
        (
            "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            "os.write(1, b'out\\n') if autoddp.rank() == 0 else time.sleep(0.5)\n"
            "if autoddp.rank(): signal.raise_signal(9)\ntime.sleep(60)\n",
            137,
            "[autoddp] rank 1 was killed by SIGKILL (signal 9)\n",
        ),
    ],
    ids=["all-leave-early", "one-leaves-early", "deaf-to-sigterm"],
)
def test_ends_that_torch_would_wait_for(warm, tmp_path, source, code, says):
    path = tmp_path / "job.py"
    path.write_text("import os, signal, time\nimport autoddp\n" + source)
    began = time.monotonic()
    done = warm.run("autoddp", "run", "-q", "-n", "2", str(path), folder=tmp_path / "run")
    assert time.monotonic() - began < SOON
    assert (done.code, done.out, done.err) == (code, "out\n", says)
    assert not done.left
