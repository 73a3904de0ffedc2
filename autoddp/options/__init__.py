"""The options, from which the command line, the decorator and a page of docs are made."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import Field, dataclass, fields
from typing import Any

from autoddp.errors import BadInput
from autoddp.options.row import BENCH, DECORATOR, KEY, VERIFY, OptionRow, option

MAX_COUNT = 10**9


@dataclass(frozen=True)
class Options:
    """The options of `autoddp run` and `@distributed`, named as on the command line."""

    nproc: int | None = option(
        None,
        "The number of ranks (processes) on this node.",
        DECORATOR,
        flags=("-n", "--nproc", "--nproc-per-node"),
        minimum=1,
        maximum=4096,
        error="a job has at least 1 rank on each node",
        default_text="one for each GPU, else 1",
    )
    nnodes: int = option(
        1,
        "The number of nodes. For nodes that come and go, use torchrun.",
        minimum=1,
        maximum=2**20,
        error="a job has at least 1 node",
    )
    node_rank: int | None = option(
        None,
        "The number of this node, counted from 0.",
        default_text="none; required with `--nnodes`",
    )
    master_addr: str | None = option(
        None,
        "The name or address of node 0, the same on every node.",
        metavar="HOST",
    )
    master_port: int | None = option(
        None,
        "A free port on node 0, the same on every node.",
        default_text="29500",
    )
    module: bool = option(
        False,
        "SCRIPT is the name of a module, as with `python -m`.",
        *(VERIFY, BENCH),
        flags=("-m",),
    )
    backend: str = option(
        "auto",
        "The library with which ranks communicate: native is torch's own for the accelerator "
        "(NCCL for CUDA); auto is native if each rank has its own device, else gloo.",
        *(DECORATOR, VERIFY, BENCH),
        choices=("auto", "nccl", "gloo", "native"),
    )
    view: str = option(
        "global",
        "What the script sees: global is one process and whole batches, local a rank's share.",
        DECORATOR,
        choices=("global", "local"),
    )
    batchnorm: str = option(
        "exact",
        "The rows for the statistics of BatchNorm: exact is the whole batch, local a rank's rows.",
        *(DECORATOR, VERIFY),
        choices=("exact", "local"),
    )
    parameters: str = option(
        "auto",
        "Where parameters, their gradients and the optimizer's states are: replicated is on every "
        "rank, sharded is a part of each on every rank; auto shards them if they do not fit.",
        *(DECORATOR, VERIFY, BENCH),
        choices=("auto", "sharded", "replicated"),
    )
    placement: str = option(
        "auto",
        "What a rank computes: sharded is its rows of each batch, replicated is whole batches, "
        "which is faster if a step takes little time; auto predicts it from a step.",
        *(DECORATOR, BENCH),
        choices=("auto", "sharded", "replicated"),
    )
    loading: str = option(
        "auto",
        "What a rank loads: auto loads its rows if that is exact, else one rank of each node "
        "loads whole batches for all; rows loads its rows even if the data set draws random "
        "numbers; each loads whole batches on every rank.",
        *(DECORATOR, VERIFY, BENCH),
        choices=("auto", "rows", "each"),
    )
    draws: str = option(
        "auto",
        "Random numbers in a model: whole draws them for the whole batch, as one process does; "
        "own draws them for a rank's rows only; auto is whole up to 64 MB.",
        *(DECORATOR, VERIFY, BENCH),
        choices=("auto", "whole", "own"),
    )
    own_ddp: str = option(
        "auto",
        "Whether the script is distributed by itself; auto is yes if its code, or what it imports "
        "from its folder, calls `init_process_group` even without a launcher's variables.",
        VERIFY,
        choices=("auto", "yes", "no"),
    )
    average_every: str | None = option(
        None,
        "With `--view local`, ranks train independently on their shares; their weights are"
        " averaged every so many steps, or with `epoch` at the end of each training "
        "loader, and before `torch.save` and the end of the script.",
        DECORATOR,
        default_text="none",
        metavar="STEPS | epoch",
    )
    disable: tuple[str, ...] = option(
        (),
        "Features to disable, to find a fault, with the names that `autoddp patches` lists.",
        *(DECORATOR, VERIFY),
        metavar="NAME,NAME",
    )
    rowwise: tuple[str, ...] = option(
        (),
        "Functions and classes that compute each row independently, and run on local rows.",
        *(VERIFY, BENCH),
        metavar="package.module:Name",
    )
    strict: bool = option(
        False,
        "Fail where the result may differ from one process, as with random numbers of each rank.",
        DECORATOR,
    )
    report: str | None = option(
        None,
        "A JSON file for all decisions with their reasons, for times, and for the amount of"
        " gathered data.",
        DECORATOR,
        metavar="PATH",
    )
    record: str | None = option(
        None,
        "A folder for a recording of where the time of each step goes on each rank, for "
        "`autoddp bench --recordings`.",
        metavar="PATH",
    )
    log_dir: str | None = option(
        None, "A folder for the output of ranks above 0.", DECORATOR, metavar="PATH"
    )
    grace: int = option(
        30,
        "The seconds after which ranks are killed, once one of them has ended after a signal"
        " and the others have not.",
        maximum=MAX_COUNT,
        error="it takes seconds, 0 for none",
        metavar="SECONDS",
    )
    max_restarts: int = option(
        0,
        "How often to restart a job after a rank has failed; a script that resumes from its "
        "newest checkpoint continues there.",
        maximum=MAX_COUNT,
        error="it takes a number, 0 for none",
    )
    hang_timeout: int = option(
        30,
        "The seconds after which a job is ended if ranks wait for each other and none makes "
        "progress; the line of each rank is printed; 0 is never.",
        *(DECORATOR, VERIFY),
        maximum=MAX_COUNT,
        error="it takes seconds, 0 for never",
        metavar="SECONDS",
    )
    verbose: bool = option(
        False,
        "Print every line of the report, and whole tracebacks.",
        DECORATOR,
        flags=("-v", "--verbose"),
    )
    quiet: bool = option(
        False, "Print no lines of autoddp.", *(DECORATOR, VERIFY, BENCH), flags=("-q", "--quiet")
    )

    def __post_init__(self) -> None:
        for declared in fields(self):
            ROWS[declared.name].check(
                declared.name, getattr(self, declared.name), str(declared.type)
            )
        if self.average_every is not None:
            self._check_averaging(self.average_every)
        if self.master_port is not None and not 0 < self.master_port < 65536:
            raise BadInput(f"--master-port is {self.master_port}; use a port from 1 to 65535")
        if self.node_rank is not None and not 0 <= self.node_rank < self.nnodes:
            fix = f"use 0 to {self.nnodes - 1}" if self.nnodes > 1 else "set --nnodes, too"
            raise BadInput(f"--node-rank is {self.node_rank} with --nnodes {self.nnodes}; {fix}")

    def _check_averaging(self, every: str) -> None:
        if every != "epoch" and not re.fullmatch("[1-9][0-9]{0,8}", every):
            raise BadInput(
                f"--average-every is {every!r}; it takes a number of steps, from 1, or epoch"
            )
        if self.view != "local":
            raise BadInput(
                f"--average-every is {every!r} with --view {self.view}, where all ranks train one "
                "model; add --view local"
            )


ROWS: dict[str, OptionRow] = {declared.name: declared.metadata[KEY] for declared in fields(Options)}


def table(command: str) -> Iterator[tuple[Field[Any], OptionRow]]:
    """Yield the options of a command, or of `@distributed`."""
    for declared in fields(Options):
        if command in ROWS[declared.name].commands:
            yield declared, ROWS[declared.name]
