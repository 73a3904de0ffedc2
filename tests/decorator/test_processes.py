"""A decorated call in processes of torchrun, srun and mpirun is their job, with one result."""

import os
import shutil
import subprocess
import sys

import pytest

from tests.support.cli import environ, run_python
from tests.support.clusters import Slurm

SCRIPT = """
import os
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from autoddp import distributed

OWN = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "TORCHELASTIC_RUN_ID")


@distributed(OPTIONS)
def main(net, seed):
    torch.manual_seed(seed)
    x = torch.randn(36, 6, dtype=torch.float64)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for a, b in DataLoader(TensorDataset(x, x[:, :3].argmax(1)), batch_size=6):
        loss = nn.functional.cross_entropy(net(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with open("log.txt", "a") as file:
        file.write(f"{loss.item():.12f}\\n")
    print("inside", f"{loss.item():.12f} {nested(3)}", [name for name in OWN if name in os.environ])
    if seed == 2:
        raise ValueError("two")
    return loss, net(a)


@distributed
def nested(x):
    return x * x


def launchers():
    return {name: os.environ.get(name) for name in OWN}


before = launchers()
torch.manual_seed(0)
net = nn.Linear(6, 3).double()
for seed in range(2):
    loss, out = main(net, seed)
    print(f"outside {loss.item():.12f} {out.sum().item():.12f} {type(out).__name__}", flush=True)
try:
    main(net, 2)
except ValueError as error:
    print("outside caught", error, launchers() == before, flush=True)
"""


def script(folder, options=""):
    path = folder / "train.py"
    path.write_text(SCRIPT.replace("OPTIONS", options))
    return path


@pytest.fixture(scope="module")
def want(tmp_path_factory):
    """What one process prints and writes."""
    folder = tmp_path_factory.mktemp("one")
    done = run_python(script(folder), cwd=folder, env={"AUTODDP_NPROC": "1"})
    assert done.rc == 0, done.err
    return done.out.splitlines(), (folder / "log.txt").read_text()


def check(want, out, folder, ranks):
    """Inside is said once, outside by each rank, and the file is written once."""
    lines = [line for line in out.splitlines() if not line.startswith("[autoddp]")]
    each = [line for line in want[0] if line.startswith("outside")]
    assert [line for line in lines if line.startswith("inside")] == want[0][::2], out
    assert sorted(line for line in lines if line.startswith("outside")) == sorted(each * ranks), out
    assert (folder / "log.txt").read_text() == want[1]


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")


@pytest.mark.slow
@pytest.mark.parametrize("nproc", [2, 3])
def test_under_torchrun(tmp_path, want, nproc):
    done = run_python(*TORCHRUN, nproc, script(tmp_path, f"nproc={nproc}"), cwd=tmp_path)
    assert done.rc == 0, done.err
    check(want, done.out, tmp_path, nproc)
    assert f"{nproc} ranks on 1 node" in done.err


@pytest.mark.slow
def test_another_nproc_than_torchruns_is_refused(tmp_path):
    done = run_python(*TORCHRUN, 2, script(tmp_path, "nproc=4"), cwd=tmp_path)
    assert (done.rc, done.out) == (1, "")
    assert (
        "BadInput: @distributed has nproc=4, but the launcher started 2 processes of this script "
        "on this node; leave nproc out, or start as many"
    ) in done.err


@pytest.mark.cluster
def test_under_srun_on_two_nodes(tmp_path, want):
    slurm, path = Slurm(), script(tmp_path)
    try:
        job = slurm.submit(tmp_path, f"srun {sys.executable} {path.name}", "-N2", "-n2")
        state = slurm.ended(job)
    finally:
        slurm.down()
    out = (tmp_path / "out").read_text()
    assert state == "COMPLETED", out
    assert "2 ranks on 2 nodes" in out
    check(want, out, tmp_path, 2)


@pytest.mark.cluster
def test_under_mpirun(tmp_path, want):
    if shutil.which("mpirun") is None:
        pytest.skip("Open MPI is not here: apt-get install openmpi-bin")
    root = ["--allow-run-as-root"] * (os.geteuid() == 0)
    command = ["mpirun", "--oversubscribe", *root, "-n", "2", sys.executable, script(tmp_path)]
    quiet = {"cwd": tmp_path, "env": environ(), "stdin": subprocess.DEVNULL}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, **quiet)
    assert done.returncode == 0, done.stderr
    check(want, done.stdout, tmp_path, 2)
