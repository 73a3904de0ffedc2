"""Libraries that start ranks themselves: `--own-ddp yes` lets them, else they are told of it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.support.cli import run_python
from tests.support.same import same_text

pytestmark = pytest.mark.slow

SCRIPTS = Path(__file__).with_name("peers")
RTOL = 1e-7


def needs(library: str):
    """One skip with a reason; nothing is imported here."""
    there = importlib.util.find_spec(library) is not None
    reason = f"{library} is not installed: pip install '.[libraries]'"
    return pytest.mark.skipif(not there, reason=reason)


@needs("lightning")
@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        ("ddp", "starts a rank, where ranks see one process"),
        ("ddp_spawn", "calls start_processes, where ranks see one process"),
    ],
)
def test_a_trainer_of_several_devices_is_told_of_the_option(strategy, said, warm, tmp_path):
    """Before it has started other ranks, which would outlive this one."""
    path = tmp_path / "two.py"
    source = (SCRIPTS / "lightened.py").read_text()
    path.write_text(source.replace("devices=1", f'devices=2, strategy="{strategy}"'))
    done = warm.run("autoddp", "run", "-n", "2", str(path), folder=tmp_path / "ranks", timeout=240)
    assert (done.code, done.left) == (1, ())
    assert f"BadInput: two.py:53 {said}" in done.err.splitlines()[-1]


@needs("accelerate")
def test_by_option_it_finds_its_ranks_as_under_torchrun(warm, tmp_path):
    path = str(SCRIPTS / "accelerated.py")
    (tmp_path / "torchrun").mkdir()
    want = run_python(
        "-m", "torch.distributed.run", "--nproc-per-node", 2, path, cwd=tmp_path / "torchrun"
    )
    assert want.rc == 0, want.err
    command = ["autoddp", "run", "-n", "2", "--own-ddp", "yes", path]
    got = warm.run(*command, folder=tmp_path / "ranks", timeout=240)
    assert got.code == 0, got.err
    same_text(want.out, got.out, RTOL, "stdout")
    (said,) = [line for line in got.err.splitlines() if line.startswith("[autoddp]")]
    assert (
        said
        == f"[autoddp] --own-ddp yes: {path} is launched as torchrun would, nothing else is done"
    )
