"""Scripts of the tests on the accelerator: ranks print and write what one process does there.

A chosen few by default; AUTODDP_ALL_ON_DEVICE=1 asks for every one.
"""

from __future__ import annotations

import os

import pytest

from tests.accelerator import jobs
from tests.support.same import same_run
from tests.test_end_to_end import ARGUMENTS, LOOSER, NEEDS, OPTIONS, RTOL

CHOSEN = (
    *("batchnorm_cnn", "early_stopping", "evaluation_in_a_thread", "transformer_dropout"),
    *("vae_noise_inside", "wgan_gp"),
)
ON_THREE = ("dropout_mlp",)
EVERYTHING = (  # whatever they make is moved, not models and batches alone
    *(
        "accumulate_short_last",
        "batch_types",
        "char_rnn_time_first",
        "detection",
        "gan",
        "gpt_returns_loss",
    ),
    *(
        "infonce",
        "layouts_and_modes",
        "lbfgs",
        "iterators",
    ),
    "wgan_gp",
)
BY_HAND = "its author would have to say where each of its tensors is, by hand"
NOT_HERE: dict[str, str] = dict.fromkeys(
    (
        *("changing_forward", "data_and_outputs", "data_assigned", "decides_by_rows"),
        *("endless_loaders", "functions_with_modules", "meta_learning"),
        *("compiled_parts", "complex_weights", "cut_by_hand", "dict_batches", "gcn_whole_graph"),
        *("interop", "mixture_of_experts", "mixup_fgsm", "own_collate", "raw_tensors"),
        *("reinforce", "sequence_losses", "shape_maths", "stateful_rnn"),
    ),
    BY_HAND,
) | {
    "inference_draws": "this device has no fused LSTM cell",
    "partial_calls": "torch scatters to CUDA alone",
    "programs": "it prints its environment, where the variable of its device is",
    "sparse_embedding": "this device has no sparse tensors",
    "traced_and_exported": "torch.jit.script takes no import, which places its tensors",
}
ALL = tuple(sorted(path.stem for path in jobs.SCRIPTS.glob("*.py")))
WANTED = ALL if os.environ.get("AUTODDP_ALL_ON_DEVICE") else CHOSEN


@pytest.mark.parametrize(
    ("name", "nproc"), [*((n, 2) for n in WANTED), *((n, 3) for n in ON_THREE)]
)
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
