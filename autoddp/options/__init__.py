"""The options as one frozen value, whose rows make the command line, the decorator and a page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import Field, dataclass, fields
from typing import Any

from autoddp.errors import BadInput
from autoddp.options.row import BENCH, DECORATOR, KEY, VERIFY, OptionRow, option

LONGEST = 10**9


@dataclass(frozen=True)
class Options:
    """The options of `autoddp run` and of `@distributed`; the names are the command line's."""

    nproc: int | None = option(
        None,
        "The number of ranks, which are processes, on this node.",
        DECORATOR,
        flags=("-n", "--nproc", "--nproc-per-node"),
        least=1,
        most=4096,
        rule="a job has at least 1 rank on each node",
        shown="one for each GPU, else 1",
    )
    nnodes: int = option(
        1,
        "The number of nodes. Nodes that come and go are torchrun's.",
        least=1,
        most=2**20,
        rule="a job has at least 1 node",
    )
    node_rank: int | None = option(
        None,
        "The number of this node, counted from 0.",
        shown="none: wanted with `--nnodes`",
    )
    master_addr: str | None = option(
        None,
        "The name or address of node 0, the same on every node.",
        takes="HOST",
    )
    master_port: int | None = option(
        None,
        "A free port on node 0, the same on every node.",
        shown="29500",
    )
    module: bool = option(
        False,
        "SCRIPT is the name of a module, as with `python -m`.",
        *(VERIFY, BENCH),
        flags=("-m",),
    )
    backend: str = option(
        "auto",
        "The library by which ranks talk; native is what torch has for the accelerator (NCCL "
        "for CUDA); auto is native where each rank has a device of its own, else gloo.",
        *(DECORATOR, VERIFY, BENCH),
        words=("auto", "nccl", "gloo", "native"),
    )
    view: str = option(
        "global",
        "What the script sees: global is one process and whole batches, local a rank's share.",
        DECORATOR,
        words=("global", "local"),
    )
    batchnorm: str = option(
        "exact",
        "The rows whose statistics BatchNorm takes: exact is the whole batch, local a rank's.",
        *(DECORATOR, VERIFY),
        words=("exact", "local"),
    )
    loading: str = option(
        "auto",
        "What a rank loads: with auto its rows where that is exact, else one rank of each node "
        "loads all for its ranks; with rows its rows even of a data set that draws random "
        "numbers; with each the whole batch.",
        *(DECORATOR, VERIFY, BENCH),
        words=("auto", "rows", "each"),
    )
    draws: str = option(
        "auto",
        "Random numbers inside a model: whole draws those of the whole batch, as one process "
        "does; own draws for each rank by itself; auto is whole up to 64 MB.",
        *(DECORATOR, VERIFY, BENCH),
        words=("auto", "whole", "own"),
    )
    own_ddp: str = option(
        "auto",
        "Whether the script is distributed by itself; auto: yes where its code, or what it "
        "imports from its folder, calls `init_process_group` whatever a launcher has set.",
        VERIFY,
        words=("auto", "yes", "no"),
    )
    average_every: str | None = option(
        None,
        "Under `--view local` ranks train by themselves on their share; their weights are"
        " averaged every so many steps, or with `epoch` at the end of each training "
        "loader, and before `torch.save` and the end.",
        DECORATOR,
        shown="none",
        takes="STEPS | epoch",
    )
    disable: tuple[str, ...] = option(
        (),
        "Features to leave out, to find a fault, by the names that `autoddp patches` lists.",
        *(DECORATOR, VERIFY),
        takes="NAME,NAME",
    )
    rowwise: tuple[str, ...] = option(
        (),
        "Functions and classes that compute each row by itself, and so run on local rows.",
        *(VERIFY, BENCH),
        takes="package.module:Name",
    )
    strict: bool = option(
        False,
        "Refuse what one process would not have done exactly so, as draws of a rank's own.",
        DECORATOR,
    )
    report: str | None = option(
        None,
        "A file to which all decisions are written with their reasons, and what the report knows"
        " of times and of what was gathered, as JSON.",
        DECORATOR,
        takes="PATH",
    )
    record: str | None = option(
        None,
        "A folder for a recording of where the time of each step went on each rank, for "
        "`autoddp bench --recordings`.",
        takes="PATH",
    )
    log_dir: str | None = option(
        None, "A folder in which what ranks above 0 print is kept.", DECORATOR, takes="PATH"
    )
    grace: int = option(
        30,
        "The seconds that ranks have to end in once one of them has ended after a signal;"
        " then they are killed.",
        most=LONGEST,
        rule="it takes seconds, 0 for none",
        takes="SECONDS",
    )
    max_restarts: int = option(
        0,
        "How often a job of which a rank failed is run again from its start; a script "
        "that resumes from its newest checkpoint goes on from there.",
        most=LONGEST,
        rule="it takes a number, 0 for none",
    )
    hang_timeout: int = option(
        30,
        "The seconds after which a job is ended in which ranks wait and none gets "
        "anywhere; where each stands is said; 0 is never.",
        *(DECORATOR, VERIFY),
        most=LONGEST,
        rule="it takes seconds, 0 for never",
        takes="SECONDS",
    )
    verbose: bool = option(
        False,
        "Print every line of the report, and whole tracebacks.",
        DECORATOR,
        flags=("-v", "--verbose"),
    )
    quiet: bool = option(
        False, "Print no line of ours.", *(DECORATOR, VERIFY, BENCH), flags=("-q", "--quiet")
    )

    def __post_init__(self) -> None:
        for declared in fields(self):
            ROWS[declared.name].check(
                declared.name, getattr(self, declared.name), str(declared.type)
            )
        if self.average_every is not None:
            self._check_averaging(self.average_every)
        if self.master_port is not None and not 0 < self.master_port < 65536:
            raise BadInput(f"--master-port is {self.master_port}; a port is from 1 to 65535")
        if self.node_rank is not None and not 0 <= self.node_rank < self.nnodes:
            way = f"it goes from 0 to {self.nnodes - 1}"
            way = way if self.nnodes > 1 else "give the number of nodes there"
            raise BadInput(f"--node-rank is {self.node_rank} with --nnodes {self.nnodes}; {way}")

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


def table(taker: str) -> Iterator[tuple[Field[Any], OptionRow]]:
    """Yield what one command, or `@distributed`, takes."""
    for declared in fields(Options):
        if taker in ROWS[declared.name].takers:
            yield declared, ROWS[declared.name]
