"""The variables of SLURM, Open MPI and Kubernetes, translated to those of torchrun.

A process of a scheduler is one rank, or the launcher of its node. It is a launcher if each node has
one process, and --nproc is larger than 1 or the node has several GPUs.
"""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, replace

from autoddp.comm.world import World
from autoddp.errors import BadInput
from autoddp.options import Options
from autoddp.process import devices

LOOPBACK = "127.0.0.1"
HOST = re.compile(r"(?:[^\[\],\s]|\[[0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*\])+(?=,|$)")
FIRST_PORT, PORTS = 20000, 10000  # below the range of ports that Linux assigns by itself
CLUSTER = "the cluster"
POD = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK")


@dataclass(frozen=True)
class SchedulerTask:
    """A process that a scheduler started as one of several of a job.

    Attributes:
        by: The command or system that started it.
        given: The variables that it set, for messages.
        local_sizes: The numbers of processes of all nodes, or only of this one.
        address: The address of rank 0's node.
        port: A port that is free there, as far as the scheduler keeps jobs apart.
    """

    by: str
    settings: str
    rank: int
    size: int
    local_rank: int
    local_sizes: tuple[int, ...]
    node: int
    nodes: int
    address: str
    port: int

    @property
    def local_size(self) -> int:
        """Return the number of processes on this node."""
        return self.local_sizes[self.node if len(self.local_sizes) > 1 else 0]


def resolve(environ: MutableMapping[str, str], options: Options) -> Options:
    """Set torchrun's variables in `environ` for a rank, or the options for a launcher of a node.

    Raises:
        BadInput: A variable is missing, or contradicts another launcher or the options.
    """
    task = find(environ)
    if task is not None and task.by == CLUSTER:
        for name in POD:  # they are about the pod, not a rank
            del environ[name]
    if task is None or task.size == 1:
        return options
    if set(LAUNCHER) <= set(environ):
        _agree(task, World.read(environ), environ)
        return options
    one_each = task.size == task.nodes  # one process on each node
    if one_each and (options.nproc or len(devices.there(environ).names)) > 1:
        return _node(task, options)
    if options.nproc is not None and {options.nproc} != set(task.local_sizes):
        sizes = " and ".join(map(str, sorted(set(task.local_sizes))))
        raise BadInput(
            f"--nproc is {options.nproc}, but {task.by} started {sizes} processes a node "
            f"({task.settings}); remove --nproc, or let {task.by} start one process on each node"
        )
    ranks = task.rank, task.size, task.local_rank, task.local_size
    environ.update(World(*ranks, task.node, task.address, task.port).variables(task.nodes))
    return options


def find(environ: Mapping[str, str]) -> SchedulerTask | None:
    """Return the task of the innermost scheduler; None if no scheduler started this process.

    Raise BadInput if mpirun started ranks inside a SLURM step of several tasks.
    """
    mpi, slurm = _mpi(environ), _slurm(environ)
    if mpi is not None and slurm is not None and mpi.nodes < slurm.size != mpi.size:
        raise BadInput(
            f"{slurm.by} set {slurm.settings}, {mpi.by} set {mpi.settings}: one job was started "
            f"inside another; start the ranks by one of them"
        )
    return mpi or slurm or _pod(environ)


def _node(task: SchedulerTask, options: Options) -> Options:
    """Return the options for this process as the launcher of its node."""
    other = options.node_rank not in (None, task.node)
    if options.nnodes not in (1, task.nodes) or (options.nnodes > 1 and other):
        rank = "" if options.node_rank is None else f" and --node-rank {options.node_rank}"
        raise BadInput(
            f"--nnodes is {options.nnodes}{rank}, but {task.by} set "
            f"{task.settings} on node {task.node} of {task.nodes}; leave both out"
        )
    return replace(
        options,
        nnodes=task.nodes,
        node_rank=task.node,
        master_addr=options.master_addr or task.address,
        master_port=options.master_port or task.port,
    )


def _agree(task: SchedulerTask, world: World, environ: Mapping[str, str]) -> None:
    """Check that a launcher runs inside this task, or the user set variables to the scheduler's.

    Otherwise several tasks have inherited a launcher's variables, and this raises BadInput.
    """
    nodes = environ.get("GROUP_WORLD_SIZE")
    by_hand = "TORCHELASTIC_RUN_ID" not in environ
    if by_hand and (world.rank, world.world_size) == (task.rank, task.size):
        return
    if nodes == str(task.size) and world.node_rank == task.rank:
        return
    raise BadInput(
        f"two launchers contradict each other: {task.by} set {task.settings}, and another one RANK "
        f"{world.rank}, WORLD_SIZE {world.world_size}, LOCAL_RANK {world.local_rank}; "
        "start the ranks by one of them"
    )


# ---- SLURM


def _slurm(environ: Mapping[str, str]) -> SchedulerTask | None:
    """Read the variables of an `srun` step; a batch script outside of one is a plain process."""
    if "SLURM_STEP_NUM_TASKS" not in environ or "SLURM_PROCID" not in environ:
        return None
    names = ("PROCID", "STEP_NUM_TASKS", "LOCALID", "NODEID", "STEP_NUM_NODES")
    rank, size, local_rank, node, nodes = (_number(environ, f"SLURM_{name}") for name in names)
    text = _text(environ, "SLURM_STEP_TASKS_PER_NODE")
    local_sizes = tuple(tasks_per_node(text))
    if len(local_sizes) != nodes or sum(local_sizes) != size or not 0 <= node < nodes:
        raise BadInput(
            f"SLURM_STEP_TASKS_PER_NODE is {text!r} with SLURM_STEP_NUM_TASKS {size}, "
            f"SLURM_STEP_NUM_NODES {nodes} and SLURM_NODEID {node}; these contradict each other"
        )
    host = environ.get("MASTER_ADDR")
    if host is None and nodes > 1:
        name = "SLURM_STEP_NODELIST" if "SLURM_STEP_NODELIST" in environ else "SLURM_JOB_NODELIST"
        host = resolved(first_host(_text(environ, name)))
    job, step = (
        int(re.sub(r"\D", "", environ.get(name, "")) or 0)
        for name in ("SLURM_JOB_ID", "SLURM_STEP_ID")
    )
    settings = f"SLURM_PROCID {rank} of SLURM_STEP_NUM_TASKS {size}"
    address, port = host or LOOPBACK, _port(environ, 16 * job + step)
    return SchedulerTask(
        "srun", settings, rank, size, local_rank, local_sizes, node, nodes, address, port
    )


def tasks_per_node(text: str) -> list[int]:
    """Expand `2(x3),1` to 2, 2, 2, 1; raise BadInput if `text` is not of that form."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:\(x([0-9]{1,6})\))?", part)
        if match is None:
            raise BadInput(
                f"SLURM_STEP_TASKS_PER_NODE is {text!r}, which is no list such as 2(x3),1"
            )
        found += [int(match[1])] * int(match[2] or 1)
    return found


def first_host(text: str) -> str:
    """Return the first of SLURM's list `node[01-03,7],gpu-a`; raise BadInput if it is none."""
    match = HOST.match(text.strip())
    if match is None:
        raise BadInput(f"{text!r} is no list of hosts such as node[01-03,7],gpu-a")
    return re.sub(r"\[([0-9]+)[^\]]*\]", r"\1", match[0])


def resolved(name: str) -> str:
    """Return an address of SLURM's node `name`, which may not be a host name.

    Raises:
        BadInput: Neither a resolver nor SLURM knows the node.
    """
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        command, answer = ["scontrol", "-o", "show", "node", name], ""
        with suppress(OSError, subprocess.TimeoutExpired):  # scontrol may be missing
            answer = subprocess.run(command, capture_output=True, text=True, timeout=20).stdout
        address = re.search(r"\bNodeAddr=(\S+)", answer)
        if address is None:
            raise BadInput(
                f"node 0 of this SLURM step is {name}, which this machine cannot resolve; "
                "set MASTER_ADDR to an address that every node can reach"
            ) from None
        return address[1]
    return name


# ---- Open MPI


def _mpi(environ: Mapping[str, str]) -> SchedulerTask | None:
    if "OMPI_COMM_WORLD_RANK" not in environ:
        return None
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    rank, size, local_rank, local_size = (
        _number(environ, f"OMPI_COMM_WORLD_{name}") for name in names
    )
    settings = f"OMPI_COMM_WORLD_RANK {rank} of OMPI_COMM_WORLD_SIZE {size}"
    if local_size == size:
        node, nodes = 0, 1
    else:
        nodes = _number(environ, "OMPI_MCA_orte_num_nodes", -(-size // max(local_size, 1)))
        node = _daemon(environ, rank // max(local_size, 1))
    address = environ.get("MASTER_ADDR") or (LOOPBACK if nodes == 1 else _head(environ))
    if address is None or not (0 <= node < nodes):
        raise BadInput(
            f"mpirun set {settings} on {nodes} nodes, but not the node of rank 0; "
            "add -x MASTER_ADDR=<rank 0's node> to its command line"
        )
    job = re.sub(r"\D", "", environ.get("PMIX_NAMESPACE", ""))
    port = _port(environ, int(job or 0))
    return SchedulerTask(
        "mpirun", settings, rank, size, local_rank, (local_size,), node, nodes, address, port
    )


def _daemon(environ: Mapping[str, str], otherwise: int) -> int:
    """Return the number of this node's daemon, which Open MPI 4 sets; 0 is mpirun's node."""
    match = re.match(r"\d+\.(\d+);", environ.get("OMPI_MCA_orte_local_daemon_uri", ""))
    return int(match[1]) if match else otherwise


def _head(environ: Mapping[str, str]) -> str | None:
    """Return the address of mpirun's node, which has rank 0 if it has any ranks."""
    match = re.search(r"tcp://([^:,]+)", environ.get("OMPI_MCA_orte_hnp_uri", ""))
    return match[1] if match else None


# ---- Kubernetes


def _pod(environ: Mapping[str, str]) -> SchedulerTask | None:
    """Read the variables of a PyTorchJob's pod, where RANK is the number of the pod."""
    is_pod = set(POD) <= set(environ)
    if not is_pod or {"LOCAL_RANK", "LOCAL_WORLD_SIZE"} & set(environ):
        return None
    rank, size = _number(environ, "RANK"), _number(environ, "WORLD_SIZE")
    size = (
        _number(environ, "PET_NNODES", size) if environ.get("PET_NNODES", "").isdecimal() else size
    )
    if not 0 <= rank < size:
        raise BadInput(f"RANK is {rank} with WORLD_SIZE {size}; ranks go from 0 to {size - 1}")
    settings = f"RANK {rank} of WORLD_SIZE {size}"
    port = _port(environ, 0)
    return SchedulerTask(
        CLUSTER, settings, rank, size, 0, (1,), rank, size, environ["MASTER_ADDR"], port
    )


# ---- all


def _port(environ: Mapping[str, str], job: int) -> int:
    """Return a port, the same on all nodes, and another one for each job."""
    return _number(environ, "MASTER_PORT", FIRST_PORT + job % PORTS)


def _number(environ: Mapping[str, str], name: str, otherwise: int | None = None) -> int:
    if otherwise is not None and name not in environ:
        return otherwise
    text = _text(environ, name)
    if not re.fullmatch("[0-9]{1,9}", text):
        raise BadInput(f"{name} is {text!r}, which is no whole number from 0 on")
    return int(text)


def _text(environ: Mapping[str, str], name: str) -> str:
    if name not in environ:
        raise BadInput(f"{name} is not set, though a scheduler started this process")
    return environ[name]
