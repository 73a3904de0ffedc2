"""Scripts of the tests on the accelerator: ranks print and write what one process does there."""

from __future__ import annotations

import pytest

from tests.accelerator import jobs
from tests.support.same import same_run
from tests.test_end_to_end import ARGUMENTS, LOOSER, OPTIONS, RTOL

CHOSEN = {
    **dict.fromkeys(("batchnorm_cnn", "early_stopping", "evaluation_in_a_thread"), 2),
    **dict.fromkeys(("transformer_dropout", "vae_noise_inside", "wgan_gp"), 2),
    "dropout_mlp": 3,
}
EVERYTHING = ("wgan_gp",)  # whatever it makes is moved, not models and batches alone


@pytest.mark.parametrize(("name", "nproc"), CHOSEN.items())
def test_ranks_give_what_one_process_gives_there(name, nproc, tmp_path):
    path = jobs.on_device(name, tmp_path, name in EVERYTHING)
    arguments = tuple(ARGUMENTS.get(name, ()))
    want = jobs.alone(path, tmp_path, *arguments)
    assert want.code == 0, want.err
    got = jobs.ranks(path, tmp_path, *OPTIONS.get(name, ()), nproc=nproc, arguments=arguments)
    assert "simccl (a simulated device for each rank)" in got.err
    same_run(want, got, LOOSER.get(name, RTOL))
