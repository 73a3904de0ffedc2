"""Every script of `scripts/` on 1, 2 and 3 ranks prints and writes what `python` gives."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.same import same_run
from tests.support.warm import Run, fresh

SCRIPTS = {path.stem: path for path in sorted(Path(__file__).with_name("scripts").glob("*.py"))}

QUICK = {  # of all kinds, which README's own command runs; the others are slow
    *("accumulate_short_last", "batchnorm_cnn", "changing_forward", "lbfgs", "swa"),
    *("char_rnn_time_first", "checkpoint_inside", "detection", "dict_batches", "double_backward"),
    *("dropout_mlp", "few_rows", "gpt_returns_loss"),
    *("log_file", "notebook", "parameter_groups"),
    *("random_dataset", "reinforce", "resume_everything", "sequence_losses"),
    *("transformer_dropout", "vae_noise_inside", "worker_pool"),
}

RTOL = 1e-9  # float64 sums in another order are off by 1e-15 each; training carries that on
LOOSER = {
    # bfloat16 keeps 8 bits: a gradient summed from the parts of a batch rounds otherwise
    "amp_bfloat16": 5e-2,
    "inference_autocast": 1e-6,
    # attention's key bias has a gradient of zero but for rounding; AdamW divides it by its size
    "gpt_returns_loss": 1e-7,
}
OPTIONS = {
    # every rank loads all, where by default one of them loads for all
    "iterable_dataset": ["--loading", "each"],
}
ARGUMENTS = {
    "whole_program": ["prepared", "--lr", "0.05"],
}
# torch's inductor builds kernels for CPUs by g++: minutes, where its cache is empty
BUILT = {"compiled_draws", "compiled_graphs", "compiled_parts"}
SLOW, LONG = pytest.mark.slow, pytest.mark.timeout(2700)

WANTED = [
    pytest.param(name, nproc, marks=[SLOW] * (name not in QUICK) + [LONG] * (name in BUILT))
    for name in SCRIPTS
    for nproc in (2, 3)
    # those that are built compile for minutes; `test_compiled` has 2 ranks
    if nproc == 3 or name not in BUILT
]


# a thread uses the model, which refuses sharded parameters: see test_sharded_parameters; what a
# backward has added to those before it raised is gone; and modes see how they are gathered
UNLIKE = BUILT | {"evaluation_in_a_thread", "failed_gradients", "seen_by_modes"}
SHARDED = [name for name in SCRIPTS if name not in UNLIKE]
QUICKEST = {"batchnorm_cnn", "double_backward", "lbfgs", "resume_everything", "swa"}


def command(name: str) -> list[str]:
    """The script and its arguments."""
    if name in BUILT and shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    return [str(SCRIPTS[name]), *ARGUMENTS.get(name, [])]


def patience(name: str) -> float:
    """Seconds that a script may take."""
    return 1200 if name in BUILT else 120


@pytest.fixture(scope="module")
def references(warm, tmp_path_factory):
    """What `python script.py` gives, run once per script."""
    known: dict[str, Run] = {}

    def reference(name: str) -> Run:
        if name not in known:
            folder = tmp_path_factory.mktemp(name) / "python"
            want = warm.run("python", *command(name), folder=folder, timeout=patience(name))
            assert want.code == (3 if name == "exit_code" else 0), want.err
            assert "Traceback" not in want.err
            assert len(want.out.splitlines()) >= 1 or any(want.folder.iterdir()), (
                "nothing to compare"
            )
            known[name] = want
        return known[name]

    return reference


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(QUICK))
def test_one_rank_gives_what_python_gives_to_the_bit(name, warm, references, tmp_path):
    """With one rank nothing is patched; a script that did not repeat itself would tell nothing."""
    compared(name, 1, warm, references, tmp_path, 0)


@pytest.mark.parametrize(("name", "nproc"), WANTED)
def test_ranks_give_what_one_process_gives(name, nproc, warm, references, tmp_path):
    compared(name, nproc, warm, references, tmp_path, LOOSER.get(name, RTOL))


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[SLOW] * (name not in QUICKEST)) for name in SHARDED],
)
def test_sharded_parameters_give_what_one_process_gives(name, warm, references, tmp_path):
    rtol = LOOSER.get(name, RTOL)
    compared(name, 2, warm, references, tmp_path, rtol, "--parameters", "sharded")


@pytest.mark.slow
@pytest.mark.parametrize("name", SHARDED)
def test_a_placement_that_is_chosen_gives_what_one_process_gives(name, warm, references, tmp_path):
    rtol = LOOSER.get(name, RTOL)
    compared(name, 2, warm, references, tmp_path, rtol, "--placement", "auto")


def compared(name, nproc, warm, references, tmp_path, rtol, *more):
    """Compare a script on `nproc` ranks with `python`, up to `rtol`."""
    want = references(name)
    options = ["--nproc", str(nproc), *OPTIONS.get(name, []), *more]
    got = warm.run(
        "autoddp",
        "run",
        *options,
        *command(name),
        folder=tmp_path / "ranks",
        timeout=patience(name),
    )
    same_run(want, got, rtol)


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_a_strangers(name):
    text = SCRIPTS[name].read_text()
    assert "autoddp" not in text
    assert len(text.splitlines()) <= 60


@pytest.mark.slow
@pytest.mark.parametrize("name", ["csv_log", "cnn_workers", "exit_code"])
def test_the_command_line_itself(name, references, tmp_path):
    """By fresh interpreters, as a shell would start them: both sides, and the warm reference."""
    script = str(SCRIPTS[name])
    plain = fresh("python", script, folder=tmp_path / "python")
    assert same_run(plain, references(name), 0) == 0
    ranks = fresh("autoddp", "run", "--nproc", "2", script, folder=tmp_path / "ranks")
    same_run(plain, ranks, RTOL)
