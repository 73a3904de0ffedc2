"""The place of this process in the job, read from torchrun's variables, which are then hidden."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

from autoddp.errors import BadInput

NAMES = {
    "rank": "RANK",
    "world_size": "WORLD_SIZE",
    "local_rank": "LOCAL_RANK",
    "local_world_size": "LOCAL_WORLD_SIZE",
    "node_rank": "GROUP_RANK",
    "master_port": "MASTER_PORT",
}
REQUIRED = (*(name for name in NAMES.values() if name != "GROUP_RANK"), "MASTER_ADDR")
ANEW = "start the job with autoddp run or torchrun"
ERRORS = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
# what torchrun and autoddp's launcher set for a rank, and one plain process would not have
ADDED = (
    *NAMES.values(),
    "MASTER_ADDR",
    "NODE_RANK",  # Ray's; Lightning would take it for its own
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "ROLE_NAME",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_ERROR_FILE",
    "TORCHELASTIC_SIGNALS_TO_HANDLE",
    ERRORS,
)
OF_A_TASK = re.compile(
    r"SLURM_(PROCID|LOCALID|NODEID|GTIDS|TASK_PID|NTASKS|NPROCS|(N?TASKS|CPUS)_(PER|ON)_NODE"
    r"|STEP_\w+|STEPID)"
    r"|SLURMD_NODENAME|(OMPI|PMIX?|PET)_\w+"
)


@dataclass(frozen=True)
class World:
    """The place of this process among the ranks of the job."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node_rank: int = 0
    master_addr: str = "localhost"
    master_port: int = 0
    agent_store: bool = False

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> World:
        """Read this process's place from torchrun's variables.

        Raises:
            BadInput: A variable is missing, is no number, or contradicts another.
        """
        missing = [name for name in REQUIRED if name not in environ]
        if missing:
            raise BadInput(
                f"{', '.join(missing)} not set, though other variables of a rank are; {ANEW}"
            )
        numbers = {field: _number(environ, name) for field, name in NAMES.items()}
        world = cls(
            **{field: n for field, n in numbers.items() if n is not None},
            master_addr=environ["MASTER_ADDR"],
            agent_store=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        )
        if not (
            0 <= world.rank < world.world_size
            and 0 <= world.local_rank < world.local_world_size <= world.world_size
        ):
            values = ", ".join(f"{name} {environ[name]}" for name in [*NAMES.values()][:4])
            raise BadInput(f"{values} contradict each other; {ANEW}")
        if not 0 < world.master_port < 65536:
            raise BadInput(f"MASTER_PORT is {world.master_port}; a port is from 1 to 65535")
        if world.master_addr.split() != [world.master_addr]:  # torch would try for half an hour
            raise BadInput(f"MASTER_ADDR is {world.master_addr!r}, which is no address; {ANEW}")
        return world

    def variables(self, nodes: int) -> dict[str, str]:
        """Return the variables that torchrun would set for a rank of a job on `nodes`."""
        own = {name: str(getattr(self, field)) for field, name in NAMES.items()}
        return own | {"GROUP_WORLD_SIZE": str(nodes), "MASTER_ADDR": self.master_addr}


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name)
    if text is not None and not re.fullmatch("[0-9]{1,9}", text):
        raise BadInput(f"{name} is {text!r}, which is no whole number from 0 on; {ANEW}")
    return None if text is None else int(text)


def is_launchers(name: str) -> bool:
    """Return whether a launcher sets this variable for one of its processes."""
    return name in ADDED or OF_A_TASK.fullmatch(name) is not None


def hide(environ: MutableMapping[str, str]) -> dict[str, str]:
    """Remove a launcher's variables from `environ`, as one plain process has none; return them.

    Of a scheduler's variables, those that differ between its processes are removed; what they have
    in common, such as the job's number, stays.
    """
    names = [name for name in environ if is_launchers(name)]
    if environ.get(ERRORS, "1") != "1":
        names.remove(ERRORS)  # the user's: torchrun sets it to that where it is not set
    return {name: environ.pop(name) for name in names}


def give(given: set[str], name: str, value: str) -> None:
    """Set a variable of this process, and note its name if one plain process would not have it."""
    if name not in os.environ:
        given.add(name)
    os.environ[name] = value


def keep_to_libraries(given: set[str], name: str) -> None:
    """Hide a variable that was given from the script; libraries written in C still see it."""
    if name in given:
        # `del` would remove it for C
        os.environ._data.pop(os.fsencode(name), None)  # type: ignore[attr-defined]
