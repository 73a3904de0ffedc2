"""Scripts of the tests on the accelerator: ranks print and write what one process does there.

A chosen few by default; AUTODDP_ALL_ON_DEVICE=1 asks for every one.
"""

from __future__ import annotations

import os

import pytest

from tests.accelerator import jobs
from tests.same import same_run
from tests.test_end_to_end import ARGUMENTS, LOOSER, NEEDS, OPTIONS, RTOL

CHOSEN = (
    "batchnorm_cnn",
    "transformer_dropout",
    "grad_scaler",
    "vae_noise_inside",
    "gan",
    "double_backward",
    "resume",
)
ON_THREE = ("batchnorm_cnn", "dropout_mlp")
EVERYTHING = ("stateful_rnn",)  # whatever they make is moved, not models and batches alone
NOT_HERE: dict[str, str] = {}  # by script: why it does not run on this device in one process
ALL = tuple(sorted(path.stem for path in jobs.SCRIPTS.glob("*.py")))
WANTED = ALL if os.environ.get("AUTODDP_ALL_ON_DEVICE") else CHOSEN


@pytest.mark.parametrize(("name", "nproc"), [*((n, 2) for n in WANTED), *((n, 3) for n in ON_THREE)])
def test_ranks_give_what_one_process_gives_there(name, nproc, tmp_path):
    if name in NOT_HERE:
        pytest.skip(NOT_HERE[name])
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    path = jobs.on_device(name, tmp_path, name in EVERYTHING)
    arguments = tuple(ARGUMENTS.get(name, ()))
    want = jobs.alone(path, tmp_path, *arguments)
    assert want.code == (3 if name == "exit_code" else 0), want.err
    got = jobs.ranks(path, tmp_path, *OPTIONS.get(name, ()), nproc=nproc, arguments=arguments)
    assert "simccl (a simulated device for each rank)" in got.err
    same_run(want, got, LOOSER.get(name, RTOL))
