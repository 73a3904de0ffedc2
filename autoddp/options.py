"""What the user asked for, as one frozen value that travels to the ranks in one variable."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from autoddp.errors import BadInput

VARIABLE = "AUTODDP_OPTIONS"

CHOICES: dict[str, tuple[str, ...]] = {
    "backend": ("auto", "nccl", "gloo"),
    "view": ("global", "local"),
    "batch": ("global", "per-rank"),
    "scale_lr": ("none", "linear", "sqrt"),
    "batchnorm": ("exact", "local"),
    "loading": ("rows", "whole"),
    "draws": ("auto", "whole", "own"),
    "own_ddp": ("auto", "yes", "no"),
}


@dataclass(frozen=True)
class Options:
    """The options of `autoddp run` and of `@distributed`; the names are the command line's."""

    nproc: int | None = None  # ranks on this node; None: one per GPU, else 1
    nnodes: int = 1
    node_rank: int = 0
    master_addr: str | None = None
    master_port: int | None = None
    module: bool = False  # the script is a module name (-m)
    backend: str = "auto"
    view: str = "global"
    batch: str = "global"
    scale_lr: str = "none"
    batchnorm: str = "exact"
    loading: str = "rows"
    draws: str = "auto"
    own_ddp: str = "auto"
    disable: tuple[str, ...] = ()
    strict: bool = False
    report: str | None = None
    log_dir: str | None = None
    grace: int = 30  # seconds that ranks have once one of them has ended after a signal
    max_restarts: int = 0  # how often a job of which a rank failed is run again
    hang_timeout: int = 30  # seconds in which no rank gets anywhere, and one waits; 0: wait for ever
    verbose: bool = False
    quiet: bool = False

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            value = getattr(self, name)
            if value not in allowed:
                raise BadInput(f"--{name.replace('_', '-')} is {value!r}; it takes {', '.join(allowed)}")
        if self.scale_lr != "none" and self.batch != "per-rank":
            raise BadInput(
                f"--scale-lr is {self.scale_lr!r} with --batch {self.batch}, where the batch does not grow; "
                "add --batch per-rank"
            )
        if self.nproc is not None and self.nproc < 1:
            raise BadInput(f"--nproc is {self.nproc}; a job has at least 1 rank on each node")
        if self.grace < 0:
            raise BadInput(f"--grace is {self.grace}; it takes seconds, 0 for none")
        if self.max_restarts < 0:
            raise BadInput(f"--max-restarts is {self.max_restarts}; it takes a number, 0 for none")
        if self.hang_timeout < 0:
            raise BadInput(f"--hang-timeout is {self.hang_timeout}; it takes seconds, 0 for never")
        if self.nnodes < 1:
            raise BadInput(f"--nnodes is {self.nnodes}; a job has at least 1 node")
        if not 0 <= self.node_rank < self.nnodes:
            raise BadInput(
                f"--node-rank is {self.node_rank} with --nnodes {self.nnodes}; "
                f"it goes from 0 to {self.nnodes - 1}"
            )

    def to_json(self) -> str:
        """As text for the variable AUTODDP_OPTIONS."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Options:
        """The inverse of `to_json`.

        Raises:
            BadInput: The text is not what `to_json` wrote.
        """
        known = {field.name for field in fields(cls)}
        try:
            values = json.loads(text)
            unknown = sorted(set(values) - known)
        except (ValueError, TypeError):
            raise BadInput(f"{VARIABLE} is {text!r}; it is written by autoddp run alone") from None
        if unknown:
            raise BadInput(f"{VARIABLE} holds unknown options: {', '.join(unknown)}")
        values["disable"] = tuple(values.get("disable", ()))
        return cls(**values)

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Options:
        """The options that the launcher handed to this rank, or the defaults."""
        return cls.from_json(environ[VARIABLE]) if VARIABLE in environ else cls()
