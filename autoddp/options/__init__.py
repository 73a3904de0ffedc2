"""What the user asked for: one table of options, as one frozen value that travels in one variable.

The command line, the decorator's keywords and README's table are made from the rows below.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import Field, asdict, dataclass, fields
from typing import Any, TypedDict

from autoddp.errors import BadInput
from autoddp.options import conflicts
from autoddp.options.row import BENCH, DECORATOR, KEY, NUMBER, VERIFY, OptionRow, option

VARIABLE = "AUTODDP_OPTIONS"
LONGEST = 10**9


@dataclass(frozen=True)
class Options:
    """The options of `autoddp run` and of `@distributed`; the names are the command line's."""

    nproc: int | None = option(
        None,
        "ranks on this node",
        DECORATOR,
        flags=("-n", "--nproc", "--nproc-per-node"),
        least=1,
        most=4096,
        rule="a job has at least 1 rank on each node",
        shown="one for each GPU, else 1",
    )
    nnodes: int = option(
        1,
        "how many nodes; MIN:MAX: nodes come and go, numbered by torch",
        DECORATOR,
        least=1,
        most=2**20,
        rule="a job has at least 1 node",
    )
    min_nodes: int | None = None  # of --nnodes MIN:MAX
    node_rank: int = option(0, "which node this is, from 0", DECORATOR, BENCH)
    master_addr: str | None = option(None, "the address of node 0", DECORATOR, BENCH)
    master_port: int | None = option(None, "a free port there", DECORATOR, BENCH, shown="29500")
    module: bool = option(
        False, "the script is a module's name, as with `python -m`", VERIFY, BENCH, flags=("-m",)
    )
    gpus_per_rank: int = option(
        1,
        "GPUs that a rank sees, for a script that puts parts of its model on `cuda:0` and `cuda:1`",
        DECORATOR,
        least=1,
        most=4096,
        rule="a rank has at least 1 GPU, where there are any",
    )
    backend: str = option(
        "auto",
        "auto, native: what torch has for the accelerator (NCCL for CUDA), if each rank has a"
        " device of its own; auto: else gloo",
        *(DECORATOR, VERIFY, BENCH),
        words=("auto", "nccl", "gloo", "xccl", "hccl", "native"),
    )
    view: str = option(
        "global",
        "what the script sees: one process, or its rank's share",
        DECORATOR,
        words=("global", "local"),
    )
    batch: str = option(
        "global",
        "per-rank: batches of training loaders are N times as large",
        DECORATOR,
        words=("global", "per-rank"),
    )
    scale_lr: str = option(
        "none",
        "learning rate under `--batch per-rank`",
        DECORATOR,
        words=("none", "linear", "sqrt"),
    )
    batchnorm: str = option(
        "exact", "whose statistics", DECORATOR, VERIFY, words=("exact", "local")
    )
    loading: str = option(
        "auto",
        "auto: a rank its rows where that is exact, else one rank of each node all, for its "
        "ranks; rows: its rows too of a data set that draws random numbers; each: every rank "
        "all",
        *(DECORATOR, VERIFY, BENCH),
        words=("auto", "rows", "each"),
    )
    draws: str = option(
        "auto",
        "random draws inside a model; auto: whole up to 64 MB",
        *(DECORATOR, BENCH),
        words=("auto", "whole", "own"),
    )
    own_ddp: str = option(
        "auto",
        "whether the script is distributed by itself; auto: its code, or what it imports from"
        " its folder, calls `init_process_group` whatever a launcher has set",
        VERIFY,
        words=("auto", "yes", "no"),
    )
    average_every: str | None = option(
        None,
        "with `--view local`: ranks train by themselves on their share; weights are averaged "
        "every so many steps, or with `epoch` at the end of each training loader, and before "
        "evaluation, `torch.save` and the end",
        DECORATOR,
        shown="none",
    )
    average_momentum: bool = option(
        False, "the optimizer's momentum, too, where weights are averaged", DECORATOR
    )
    compress: str = option(
        "none",
        "gradients travel in fewer bytes, by torch's communication hooks; numbers are then "
        "not one process's",
        DECORATOR,
        shown="none, fp16, bf16, powersgd[:RANK]",
    )
    shard_optimizer: bool = option(
        False,
        "each rank keeps the optimizer's state of its share of the parameters; `state_dict()`"
        " is one process's",
        DECORATOR,
    )
    disable: tuple[str, ...] = option(
        (),
        "features to leave out, to find a fault: names as `autoddp patches` lists them; "
        "`modules:Net.encoder` keeps that module alone from being run by rows as one",
        *(DECORATOR, VERIFY),
    )
    strict: bool = option(
        False,
        "refuse what one process would not have done exactly so: a data set that draws under "
        "`--loading rows`, draws that each rank makes by itself",
        DECORATOR,
    )
    report: str | None = option(
        None, "a file for all decisions with their reasons, as JSON", DECORATOR
    )
    record: str | None = option(
        None,
        "a folder for a recording: what each rank computed at every step and where its time "
        "went, for `autoddp verify --recordings` and `autoddp bench --recordings`; the "
        "generators of a script that does not seed them start alike",
    )
    record_kind: str = option(
        "all",
        "what is recorded; times: no fingerprints of what was computed, which take time",
        words=("all", "numbers", "times"),
    )
    log_dir: str | None = option(None, "a folder for what ranks above 0 print", DECORATOR)
    grace: int = option(
        30,
        "seconds that ranks have to end in once one of them has ended after a signal; then "
        "they are killed",
        most=LONGEST,
        rule="it takes seconds, 0 for none",
    )
    max_restarts: int = option(
        0,
        "how often a job of which a rank failed is run again from its start; a script that "
        "resumes from its newest checkpoint goes on",
        most=LONGEST,
        rule="it takes a number, 0 for none",
    )
    hang_timeout: int = option(
        30,
        "seconds after which a job is ended in which ranks wait and none gets anywhere; where"
        " each stands is said; 0: never",
        *(DECORATOR, VERIFY),
        most=LONGEST,
        rule="it takes seconds, 0 for never",
    )
    verbose: bool = option(
        False,
        "every line of the report, whole tracebacks",
        DECORATOR,
        flags=("-v", "--verbose"),
    )
    quiet: bool = option(
        False, "none of our lines", *(DECORATOR, VERIFY, BENCH), flags=("-q", "--quiet")
    )

    def __post_init__(self) -> None:
        for declared in fields(self):
            row = ROWS.get(declared.name, NUMBER)
            row.check(declared.name, getattr(self, declared.name), str(declared.type))
        conflicts.check(self)

    @property
    def nodes(self) -> str:
        """Return the number of nodes as the command line has it."""
        return str(self.nnodes) if self.min_nodes is None else f"{self.min_nodes}:{self.nnodes}"

    @property
    def changes(self) -> bool:
        """Return whether nodes may come and go."""
        return self.min_nodes is not None and self.nnodes > 1

    def to_json(self) -> str:
        """Write the options as text for the variable AUTODDP_OPTIONS."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Options:
        """Read what `to_json` wrote.

        Raises:
            BadInput: The text is not what `to_json` wrote.
        """
        known = {field.name for field in fields(cls)}
        try:
            values = json.loads(text)
            unknown = sorted(set(values) - known)
            if isinstance(values.get("disable"), list):  # as JSON writes a tuple
                values["disable"] = tuple(values["disable"])
        except (ValueError, TypeError, AttributeError, RecursionError):
            raise BadInput(f"{VARIABLE} is {text!r}; it is written by autoddp run alone") from None
        if unknown:
            raise BadInput(f"{VARIABLE} holds unknown options: {', '.join(unknown)}")
        return cls(**values)

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Options:
        """Read the options that the launcher handed to this rank, or return the defaults."""
        return cls.from_json(environ[VARIABLE]) if VARIABLE in environ else cls()


ROWS = {declared.name: declared.metadata[KEY] for declared in fields(Options) if declared.metadata}


def table(taker: str) -> Iterator[tuple[Field[Any], OptionRow]]:
    """Yield what one command, or `@distributed`, takes."""
    for declared in fields(Options):
        row = ROWS.get(declared.name)
        if row is not None and taker in row.takers:
            yield declared, row


class Span(TypedDict):
    """The number of nodes, as `Options` has it."""

    nnodes: int
    min_nodes: int | None


def span(name: str, text: str) -> Span:
    """Read a whole number, or the smallest and the largest of a range.

    Raises:
        BadInput: It is neither.
    """
    least, colon, most = text.partition(":")
    try:
        return Span(nnodes=int(most if colon else least), min_nodes=int(least) if colon else None)
    except ValueError:
        raise BadInput(f"{name} is {text!r}; it takes a whole number, or two as MIN:MAX") from None
