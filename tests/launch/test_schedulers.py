"""The rank of a process from real variables of SLURM, Open MPI and Kubernetes."""

from __future__ import annotations

import pytest

from autoddp.comm.world import World, hide
from autoddp.errors import BadInput
from autoddp.launch import schedulers
from autoddp.options import Options

SLURM = {
    "SLURM_JOB_ID": "1234",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURM_STEP_NODELIST": "localhost,n[2-3]",
    "SLURM_NTASKS": "5",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
}
EACH_NODE = SLURM | {
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_TASKS_PER_NODE": "1(x3)",
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "2",
}
ONE = SLURM | {
    "SLURM_STEP_NUM_TASKS": "1",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_STEP_TASKS_PER_NODE": "1",
}
ONE |= {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_MCA_orte_num_nodes": "2",
    "OMPI_MCA_orte_hnp_uri": "1985740800.0;tcp://192.0.2.2,10.0.0.1:47541;tcp6://[fd00::2]:38515",
    "OMPI_MCA_orte_local_daemon_uri": "1985740800.1;tcp://192.0.2.3:1",
    "PMIX_NAMESPACE": "1985740801",
}
ALONE = MPI | {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}
POD = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"}
TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
TORCHRUN |= {
    "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "1",
}


@pytest.mark.parametrize(
    ("given", "world"),
    [
        (SLURM, World(3, 5, 1, 2, 1, "localhost", 20000 + 16 * 1234 % 10000)),
        (EACH_NODE, World(2, 3, 0, 1, 2, "localhost", 20000 + 16 * 1234 % 10000)),
        (MPI, World(3, 4, 1, 2, 1, "192.0.2.2", 20000 + 1985740801 % 10000)),
        (ALONE, World(1, 2, 1, 2, 0, "127.0.0.1", 20000 + 1985740801 % 10000)),
        (POD, World(1, 2, 0, 1, 1, "job-master-0", 23456)),
        (POD | {"PET_NNODES": "2", "WORLD_SIZE": "8"}, World(1, 2, 0, 1, 1, "job-master-0", 23456)),
    ],
)
def test_a_process_for_each_rank(given, world):
    environ = dict(given)
    assert schedulers.resolve(environ, Options()) == Options()
    assert World.read(environ) == world


@pytest.mark.parametrize(
    "given",
    [
        {},
        ONE,
        TORCHRUN,
        # torchrun on each of two nodes
        TORCHRUN
        | EACH_NODE
        | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}
        | {"SLURM_STEP_NUM_NODES": "2", "SLURM_PROCID": "0", "SLURM_NODEID": "0"},
        # what many scripts for SLURM export
        TORCHRUN | SLURM | {"RANK": "3", "WORLD_SIZE": "5"},
    ],
)
def test_a_single_task_changes_nothing(given):
    environ = dict(given)
    assert schedulers.resolve(environ, Options(nproc=2)) == Options(nproc=2)
    assert environ == given


@pytest.mark.parametrize(
    ("given", "options", "says"),
    [
        (
            SLURM,
            {"nproc": 3},
            "--nproc is 3, but srun started 1 and 2 processes a node (SLURM_PROCID 3 of",
        ),
        (
            SLURM | TORCHRUN,
            {},
            "two launchers contradict each other: srun set SLURM_PROCID 3 of "
            "SLURM_STEP_NUM_TASKS 5, and another one RANK 1, WORLD_SIZE 4",
        ),
        (POD | {"RANK": "2"}, {}, "RANK is 2 with WORLD_SIZE 2"),
    ],
)
def test_contradicting_variables_raise(given, options, says):
    with pytest.raises(BadInput) as error:
        schedulers.resolve(dict(given), Options(**options))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_the_script_does_not_see_which_task_it_is():
    environ = (
        SLURM | MPI | {"SLURMD_NODENAME": "n2", "SLURM_JOB_NODELIST": "n[1-3]", "HOME": "/root"}
    )
    hide(environ)
    assert sorted(environ) == ["HOME", "SLURM_JOB_ID", "SLURM_JOB_NODELIST"]
