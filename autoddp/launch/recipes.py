"""The recipes of `autoddp launch-script`: what a scheduler is given, with a word on each line."""

from __future__ import annotations

import json
import os
import re
import shlex
from dataclasses import dataclass

from autoddp.errors import BadInput
from autoddp.launch.schedulers import FIRST_PORT


@dataclass(frozen=True)
class RecipeOptions:
    """The job that a recipe is to run.

    Attributes:
        command: The script and its arguments; with -m before a module.
        nproc: Ranks of a node, each with a GPU.
        image: The image of the containers.
    """

    command: tuple[str, ...]
    nnodes: int
    nproc: int
    image: str

    @property
    def name(self) -> str:
        """Return a name of the job that all schedulers take."""
        script = next((word for word in self.command if not word.startswith("-")), "")
        stem = os.path.basename(script).removesuffix(".py").lower()
        return re.sub("[^a-z0-9]+", "-", stem).strip("-")[:40] or "job"

    @property
    def run(self) -> str:
        """Return the command that runs on each node."""
        return shlex.join(["autoddp", "run", "--nproc", str(self.nproc), *self.command])


def slurm(wanted: RecipeOptions) -> str:
    """Return a batch script: `autoddp launch-script --slurm train.py > job.sh; sbatch job.sh`."""
    return f"""\
#!/bin/bash
#SBATCH --job-name={wanted.name}
#SBATCH --nodes={wanted.nnodes}
#SBATCH --ntasks-per-node=1        # one autoddp on each node: it starts the ranks of its node
#SBATCH --cpus-per-task={4 * wanted.nproc}         # for its ranks, and the workers \
of their data loaders
##SBATCH --gpus-per-node={wanted.nproc}       # take one # away where nodes have \
GPUs: one for each rank
#SBATCH --time=24:00:00
#SBATCH --output=%x-%j.out         # {wanted.name}-<job>.out
#SBATCH --open-mode=append         # a job that is started again goes on in the same file
#SBATCH --requeue                  # it is: your script resumes, if it does so by itself

# Ranks, addresses and a port come from SLURM. A task that fails ends the others.
srun --kill-on-bad-exit=1 {wanted.run}
"""


def kubernetes(wanted: RecipeOptions) -> str:
    """Return a manifest: `autoddp launch-script --k8s train.py | kubectl apply -f -`."""
    roles = [("Master", 1)] + [("Worker", wanted.nnodes - 1)] * (wanted.nnodes > 1)
    replicas = "".join(_replicas(role, count, wanted) for role, count in roles)
    return f"""\
# For Kubeflow's training operator, which gives each pod MASTER_ADDR, MASTER_PORT, \
WORLD_SIZE and RANK.
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata:
  name: {wanted.name}
spec:
  runPolicy:
    backoffLimit: 3  # a job that failed is run again: what your script has saved, \
it resumes from by itself
  pytorchReplicaSpecs:
{replicas}"""


def _replicas(role: str, count: int, wanted: RecipeOptions) -> str:
    words = json.dumps(shlex.split(wanted.run))  # JSON is YAML
    return f"""\
    {role}:
      replicas: {count}
      restartPolicy: OnFailure
      template:
        spec:
          containers:
            - name: pytorch  # the operator looks for this name
              image: {json.dumps(wanted.image)}  # with autoddp and your script in it
              command: {words}
              # where nodes have GPUs, one for each rank:
              # resources: {{limits: {{nvidia.com/gpu: {wanted.nproc}}}}}
              volumeMounts: [{{name: shm, mountPath: /dev/shm}}]
          volumes:
            - name: shm  # data loaders' workers hand batches over there; the default is 64 MiB
              emptyDir: {{medium: Memory}}
"""


def mpi(wanted: RecipeOptions) -> str:
    """Return a command line: `autoddp launch-script --mpi train.py > job.sh; bash job.sh`."""
    hosts = ",".join(f"node{number}:{wanted.nproc}" for number in range(wanted.nnodes))
    where = f" \\\n    --host {hosts}" if wanted.nnodes > 1 else ""
    variables = (
        f" \\\n    -x MASTER_ADDR=node0 -x MASTER_PORT={FIRST_PORT}" if wanted.nnodes > 1 else ""
    )
    why = (
        "# node0, node1 ...: your nodes, the first of which has rank 0; "
        "autoddp and the script are on each.\n"
        if wanted.nnodes > 1
        else ""
    )
    script = shlex.join(["autoddp", "run", *wanted.command])
    return f"""\
#!/bin/bash
# One process for each rank, started by Open MPI; ranks come from OMPI_COMM_WORLD_*.
{why}mpirun -n {wanted.nnodes * wanted.nproc} --bind-to none{where}{variables} \\
    {script}
"""


RECIPES = {"slurm": slurm, "k8s": kubernetes, "mpi": mpi}


def written(kinds: list[str], wanted: RecipeOptions) -> str:
    """Return the recipe of the kind that is asked for.

    Raises:
        BadInput: None is asked for, or several; or a number or a word cannot be part of one.
    """
    if len(kinds) != 1:
        given = " and ".join(f"--{kind}" for kind in kinds) or "none"
        raise BadInput(f"launch-script takes one of --slurm, --k8s and --mpi; given is {given}")
    for name, number in (("--nnodes", wanted.nnodes), ("--nproc", wanted.nproc)):
        if not 1 <= number <= 100_000:
            raise BadInput(f"{name} is {number}; it takes a whole number from 1 on")
    if any("\n" in word for word in (*wanted.command, wanted.image)):
        raise BadInput(
            "an argument holds the end of a line, which no batch script takes as part of a word"
        )
    return RECIPES[kinds[0]](wanted)
