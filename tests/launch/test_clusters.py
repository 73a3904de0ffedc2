"""Jobs under real schedulers: srun on 2 nodes, Open MPI's mpirun, Kubernetes' variables."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch.test_two_nodes import ADDRESSES, nodes  # noqa: F401
from tests.support.cli import ROOT, end_all, environ, run_python, start_cli
from tests.support.clusters import Slurm
from tests.support.ports import free_port
from tests.test_examples import TASKS

pytestmark = pytest.mark.cluster

AUTODDP = f"{sys.executable} -m autoddp run"
TRAIN = """
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(36, 6, dtype=torch.float64)
net = nn.Linear(6, 3).double()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step, (a, b) in enumerate(DataLoader(TensorDataset(x, x[:, :3].argmax(1)), batch_size=6)):
    loss = nn.functional.cross_entropy(net(a), b)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    torch.save({"net": net.state_dict(), "step": step + 1}, "last.pt")
of_a_task = ("SLURM_PROCID", "SLURM_STEP", "OMPI", "PMIX")
print(f"{loss.item():.12f}", \
[name for name in os.environ if name.startswith(of_a_task)], flush=True)
"""


@pytest.fixture(scope="module")
def slurm():
    cluster = Slurm()
    yield cluster
    cluster.down()


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    return path


@pytest.fixture(scope="module")
def want(tmp_path_factory):
    """The output of one process."""
    folder = tmp_path_factory.mktemp("one")
    (folder / "train.py").write_text(TRAIN)
    done = run_python("train.py", cwd=folder)
    assert done.rc == 0, done.err
    return done.out


(RECIPE,) = TASKS  # of the examples' README: one autoddp on each of two nodes
SRUN = " ".join(
    AUTODDP if word == "autoddp" else word for word in RECIPE if word != "run" and ".py" not in word
)
UNLIKE = "hash() of text"  # is said where ranks' sets of names have another order


@pytest.mark.parametrize(
    ("command", "tasks", "said"),
    [
        (f"srun {AUTODDP}", ("-N2", "-n3"), "3 ranks on 2 nodes"),
        (SRUN, ("-N2", "-n2"), "4 ranks on 2 nodes"),
    ],
    ids=["a-task-for-each-rank", "a-task-for-each-node"],
)
def test_srun(slurm, script, want, command, tasks, said):
    job = slurm.submit(script.parent, f"{command} train.py", *tasks)
    state, out = slurm.ended(job), (script.parent / "out").read_text()
    assert state == "COMPLETED", out
    assert said in out
    assert UNLIKE not in out
    assert [
        line for line in out.splitlines() if not line.startswith("[autoddp]")
    ] == want.splitlines(), out


def test_sbatch_accepts_the_batch_script_of_the_page(slurm, tmp_path):
    page = (Path(ROOT) / "docs" / "machines.md").read_text()
    (script,) = re.findall(r"```bash\n(#!/bin/bash\n.*?)```", page, re.S)
    (tmp_path / "job.sh").write_text(script)
    said = slurm.call("sbatch", "--test-only", tmp_path / "job.sh", check=False)
    assert "to start at" in said, said
    assert "n[1-2]" in said


@pytest.fixture
def mpirun():
    if shutil.which("mpirun") is None:
        pytest.skip("Open MPI is not here: apt-get install openmpi-bin")
    options = (
        ("--oversubscribe", "--allow-run-as-root") if os.geteuid() == 0 else ("--oversubscribe",)
    )
    return lambda count, *more, cwd, before=(), how=(): subprocess.run(
        [*before, "mpirun", *options, "-n", str(count), *how, *AUTODDP.split(), *more],
        cwd=cwd,
        env=environ(),
        capture_output=True,
        text=True,
        timeout=240,
        stdin=subprocess.DEVNULL,
    )


AGENT = """\
#!/bin/sh
# what mpirun takes for ssh: HOST COMMAND
case $1 in {addresses[0]}) node={nodes[0]} ;; {addresses[1]}) node={nodes[1]} ;; esac
shift
exec ip netns exec "$node" sh -c "$*"
"""


def test_mpirun_on_two_hosts(mpirun, nodes, script, want):  # noqa: F811
    """Ranks use the address of mpirun."""
    agent = script.parent / "agent"
    agent.write_text(AGENT.format(nodes=nodes, addresses=ADDRESSES))
    agent.chmod(0o755)
    network = f"{ADDRESSES[0]}/24"
    how = [
        "--mca",
        "plm_rsh_agent",
        agent,
        "--mca",
        "oob_tcp_if_include",
        network,
        "--bind-to",
        "none",
    ]
    hosts = ["--host", f"{ADDRESSES[0]}:2,{ADDRESSES[1]}:1"]
    before = ["ip", "netns", "exec", nodes[0]]
    done = mpirun(3, "train.py", cwd=script.parent, before=before, how=(*how, *hosts))
    assert (done.returncode, done.stdout) == (0, want), done.stderr
    assert "3 ranks on 2 nodes" in done.stderr
    assert UNLIKE not in done.stderr
    assert "hostname of the client" not in done.stderr, "torch misses DNS"


@pytest.mark.parametrize("nproc", [1, 2])
def test_pods_of_a_pytorchjob(script, want, nproc):
    """The master's address is a name; RANK is the pod's."""
    job = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())}
    pods, folder = [], script.parent
    for rank in range(2):
        logs = folder / f"pod{rank}"
        variables = job | {"RANK": str(rank)}
        pods.append(
            start_cli("run", "-n", nproc, script.name, folder=folder, logs=logs, env=variables)
        )
    first, second = end_all(pods)
    assert (first.rc, second.rc) == (0, 0), first.err
    assert (first.out, second.out) == (want, "")
    assert f"{2 * nproc} ranks on 2 nodes" in first.err
