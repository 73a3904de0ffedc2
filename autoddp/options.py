"""What the user asked for, as one frozen value that travels to the ranks in one variable."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, TypedDict

from autoddp.errors import BadInput

VARIABLE = "AUTODDP_OPTIONS"

CHOICES: dict[str, tuple[str, ...]] = {
    "backend": ("auto", "nccl", "gloo", "xccl", "hccl", "native"),
    "view": ("global", "local"),
    "batch": ("global", "per-rank"),
    "scale_lr": ("none", "linear", "sqrt"),
    "batchnorm": ("exact", "local"),
    "loading": ("auto", "rows", "each"),
    "draws": ("auto", "whole", "own"),
    "own_ddp": ("auto", "yes", "no"),
}
# what each number is to be, from and to: what is larger is a slip, and fails in clocks and sockets later
LIMITS: dict[str, tuple[int, int, str]] = {
    "nproc": (1, 4096, "a job has at least 1 rank on each node"),
    "nnodes": (1, 2**20, "a job has at least 1 node"),
    "gpus_per_rank": (1, 4096, "a rank has at least 1 GPU, where there are any"),
    "grace": (0, 10**9, "it takes seconds, 0 for none"),
    "max_restarts": (0, 10**9, "it takes a number, 0 for none"),
    "hang_timeout": (0, 10**9, "it takes seconds, 0 for never"),
}
# by the annotations below; a number is no bool, though Python's is
KINDS: dict[str, Callable[[Any], bool]] = {
    "int": lambda value: type(value) is int,
    "bool": lambda value: type(value) is bool,
    "str": lambda value: isinstance(value, str),
    "None": lambda value: value is None,
    "tuple[str, ...]": lambda value: type(value) is tuple and all(isinstance(name, str) for name in value),
}
WORDS = {"int": "a whole number", "bool": "yes or no", "str": "text", "tuple[str, ...]": "names"}


@dataclass(frozen=True)
class Options:
    """The options of `autoddp run` and of `@distributed`; the names are the command line's."""

    nproc: int | None = None  # ranks on this node; None: one per GPU, else 1
    nnodes: int = 1  # at most, where min_nodes is there, too
    min_nodes: int | None = None  # of --nnodes MIN:MAX: nodes come and go
    node_rank: int = 0
    master_addr: str | None = None
    master_port: int | None = None
    module: bool = False  # the script is a module name (-m)
    gpus_per_rank: int = 1
    backend: str = "auto"
    view: str = "global"
    batch: str = "global"
    scale_lr: str = "none"
    batchnorm: str = "exact"
    loading: str = "auto"
    draws: str = "auto"
    own_ddp: str = "auto"
    average_every: str | None = None  # steps of an optimizer, or epoch; None: gradients are averaged
    average_momentum: bool = False
    compress: str = "none"  # fp16, bf16, powersgd or powersgd:RANK
    shard_optimizer: bool = False
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
        for field in fields(self):
            self._check_kind(field.name, str(field.type))
        for name, allowed in CHOICES.items():
            value = getattr(self, name)
            if value not in allowed:
                raise BadInput(f"{flag(name)} is {value!r}; it takes {', '.join(allowed)}")
        for name, (least, most, rule) in LIMITS.items():
            number = getattr(self, name)
            if number is not None and not least <= number <= most:
                raise BadInput(f"{flag(name)} is {number}; {rule if number < least else f'{most} at most'}")
        if self.scale_lr != "none" and self.batch != "per-rank":
            raise BadInput(
                f"--scale-lr is {self.scale_lr!r} with --batch {self.batch}, where the batch does not grow; "
                "add --batch per-rank"
            )
        self._check_averaging()
        self._check_compression()
        if self.master_port is not None and not 0 < self.master_port < 65536:
            raise BadInput(f"--master-port is {self.master_port}; a port is from 1 to 65535")
        self._check_range()
        if not 0 <= self.node_rank < self.nnodes:
            raise BadInput(
                f"--node-rank is {self.node_rank} with --nnodes {self.nnodes}; "
                f"it goes from 0 to {self.nnodes - 1}"
            )

    @property
    def nodes(self) -> str:
        """How many, as the command line has it."""
        return str(self.nnodes) if self.min_nodes is None else f"{self.min_nodes}:{self.nnodes}"

    @property
    def changes(self) -> bool:
        """Whether nodes may come and go."""
        return self.min_nodes is not None and self.nnodes > 1

    def _check_range(self) -> None:
        least = self.min_nodes
        if least is None:
            return
        if least < 1:
            raise BadInput(f"--nnodes is {self.nodes}; a job has at least 1 node")
        if least > self.nnodes:
            raise BadInput(f"--nnodes is {self.nodes}; the smaller number comes first, as in 1:2")
        if self.node_rank:
            raise BadInput(
                f"--node-rank is {self.node_rank} with --nnodes {self.nodes}, where nodes get their numbers "
                "as they come; leave --node-rank out"
            )

    def _check_averaging(self) -> None:
        every = self.average_every
        if every is not None and self.shard_optimizer:
            raise BadInput(
                f"--average-every is {every!r} with --shard-optimizer, where ranks step by themselves; "
                "leave out one of them"
            )
        if every is None and self.average_momentum:
            raise BadInput("--average-momentum is given, but weights are not averaged; add --average-every")
        if every is None:
            return
        if every != "epoch" and not re.fullmatch("[1-9][0-9]{0,8}", every):
            raise BadInput(f"--average-every is {every!r}; it takes a number of steps, from 1, or epoch")
        if self.view != "local":
            raise BadInput(
                f"--average-every is {every!r} with --view {self.view}, where all ranks train one model; "
                "add --view local"
            )

    def _check_compression(self) -> None:
        how = self.compress
        if not re.fullmatch("none|fp16|bf16|powersgd(:[1-9][0-9]{0,3})?", how):
            raise BadInput(f"--compress is {how!r}; it takes none, fp16, bf16, powersgd or powersgd:RANK")
        if how != "none" and self.strict:
            raise BadInput(
                f"--compress is {how!r} with --strict, but its gradients are not those of one process; "
                "leave out one of them"
            )
        if how != "none" and self.average_every is not None:
            raise BadInput(
                f"--compress is {how!r} with --average-every, where none travel; leave out one of them"
            )

    def _check_kind(self, name: str, annotation: str) -> None:
        kinds, value = annotation.split(" | "), getattr(self, name)
        if not any(KINDS[kind](value) for kind in kinds):
            raise BadInput(f"{flag(name)} is {value!r}; it takes {WORDS[kinds[0]]}")

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
            if isinstance(values.get("disable"), list):  # as JSON writes a tuple
                values["disable"] = tuple(values["disable"])
        except (ValueError, TypeError, AttributeError, RecursionError):
            raise BadInput(f"{VARIABLE} is {text!r}; it is written by autoddp run alone") from None
        if unknown:
            raise BadInput(f"{VARIABLE} holds unknown options: {', '.join(unknown)}")
        return cls(**values)

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Options:
        """The options that the launcher handed to this rank, or the defaults."""
        return cls.from_json(environ[VARIABLE]) if VARIABLE in environ else cls()


def flag(name: str) -> str:
    """An option as the command line has it."""
    return f"--{name.replace('_', '-')}"


class Span(TypedDict):
    """How many nodes, as `Options` has it."""

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
