"""Random trainings, others each day: layers, losses, optimizers, habits of scripts."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from tests.support.same import same_run

SCRIPT = str(Path(__file__).parents[1] / "scripts" / "random" / "trainings.py")
COUNT = 60


@pytest.mark.slow
@pytest.mark.parametrize("nproc", [2, 3])
def test_random_trainings_give_what_one_process_gives(nproc, warm, tmp_path):
    first = str(COUNT * datetime.date.today().toordinal())
    given = SCRIPT, first, str(COUNT)
    want = warm.run("python", *given, folder=tmp_path / "python", timeout=200)
    options = ["--nproc", str(nproc)]
    got = warm.run("autoddp", "run", *options, *given, folder=tmp_path / "ranks", timeout=200)
    assert want.code == 0, want.err
    same_run(want, got, 1e-6)  # some trainings amplify rounding a thousandfold within few steps
