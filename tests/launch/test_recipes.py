"""What `autoddp launch-script` prints is taken by the real tools."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.cli import environ, run_cli

pytestmark = pytest.mark.cluster

SCRIPT = ("--nnodes", "2", "--nproc", "4", "train it.py", "--lr", "0.1", "a b", "$HOME")


def printed(*words):
    done = run_cli("launch-script", *words)
    assert done.rc == 0, done.err
    return done.out


def test_a_manifest_is_yaml():
    yaml = pytest.importorskip("yaml")
    job = yaml.safe_load(printed("--k8s", "--image", "mine:1", *SCRIPT))
    assert (job["kind"], job["metadata"]["name"]) == ("PyTorchJob", "train-it")
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert {role: spec["replicas"] for role, spec in replicas.items()} == {"Master": 1, "Worker": 1}
    for spec in replicas.values():
        (container,) = spec["template"]["spec"]["containers"]
        assert (container["name"], container["image"]) == ("pytorch", "mine:1")
        assert container["command"] == ["autoddp", "run", "--nproc", *SCRIPT[3:]]
    alone = yaml.safe_load(printed("--k8s", "train.py"))
    assert list(alone["spec"]["pytorchReplicaSpecs"]) == ["Master"]


def test_mpiruns_command_line_runs(tmp_path):
    if shutil.which("mpirun") is None:
        pytest.skip("Open MPI is not here: apt-get install openmpi-bin")
    (tmp_path / "train.py").write_text(
        "import sys, autoddp\nprint(autoddp.world_size(), sys.argv[1:])\n"
    )
    (tmp_path / "job.sh").write_text(printed("--mpi", "--nproc", "2", "train.py", "a b"))
    # as pip would install it
    (tmp_path / "autoddp").write_text('#!/bin/sh\nexec python -m autoddp "$@"\n')
    (tmp_path / "autoddp").chmod(0o755)
    of_mpi = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    path = f"{tmp_path}:{Path(shutil.which('python') or '').parent}:{environ()['PATH']}"
    done = subprocess.run(
        ["bash", "job.sh"],
        cwd=tmp_path,
        env=environ({**of_mpi, "PATH": path, "OMPI_MCA_rmaps_base_oversubscribe": "1"}),
        capture_output=True,
        text=True,
        timeout=240,
        stdin=subprocess.DEVNULL,
    )
    assert (done.returncode, done.stdout) == (0, "2 ['a b']\n"), done.stderr


def test_several_nodes_of_mpi_are_named():
    text = printed("--mpi", *SCRIPT)
    assert "mpirun -n 8 --bind-to none" in text
    assert "--host node0:4,node1:4" in text
    assert "-x MASTER_ADDR=node0" in text
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("train.py",), "launch-script takes one of --slurm, --k8s and --mpi; given is none"),
        (("--slurm", "--mpi", "train.py"), "given is --slurm and --mpi"),
        (("--slurm",), "no script given"),
        (
            ("--slurm", "--nnodes", "0", "train.py"),
            "--nnodes is 0; it takes a whole number from 1 on",
        ),
        (("--slurm", "--nproc", "x", "train.py"), "--nproc is 'x'; it takes a whole number"),
        (("--slurm", "train.py", "a\nb"), "an argument holds the end of a line"),
    ],
)
def test_bad_input_is_one_line(words, says):
    done = run_cli("launch-script", *words)
    assert (done.rc, done.out) == (2, "")
    assert says in done.err
    assert len(done.err.splitlines()) == 1
