"""The ways to run a script that are compared: the rows of the tables."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from autoddp.options import Options
from autoddp.process import devices
from autoddp.process.devices import There

PLAIN, DATA_PARALLEL, GLOBAL, LOCAL = "plain", "DataParallel", "global view", "local view"
REPLICATE = "autoddp.tools.bench.replicate:setup"
NO_GPUS = "DataParallel is left out: it takes several GPUs, and there {gpus}"
CUDAS = "DataParallel is left out: torch scatters to CUDA alone, and here is {kind}"


@dataclass(frozen=True)
class Way:
    """A way to run a script: options, devices, changes and environment."""

    kind: str
    options: Options
    devices: int  # GPUs or ranks, by which efficiency is reckoned
    changes: tuple[str, ...] = ()  # see `SandboxedScript`
    environ: Mapping[str, str] = field(default_factory=dict)
    name: str = ""  # of a recording

    @property
    def label(self) -> str:
        """Return what the way is called in a table."""
        return self.name or self.kind

    @property
    def ranks(self) -> int:
        """Return the number of ranks on all nodes together."""
        return (self.options.nproc or 1) * self.nodes

    @property
    def nodes(self) -> int:
        """Return the number of nodes."""
        return self.options.nnodes

    @property
    def count(self) -> str:
        """Return the number of ranks as text, by nodes where there are several."""
        return str(self.ranks) if self.nodes == 1 else f"{self.nodes}x{self.options.nproc}"

    @property
    def local(self) -> bool:
        """Return whether each rank sees its share of a batch alone."""
        return self.options.view == "local"

    @property
    def title(self) -> str:
        """Return the way's name in a sentence."""
        if self.name or self.kind in (PLAIN, DATA_PARALLEL):
            return self.label
        where = f" on {self.nodes} nodes" if self.nodes > 1 else ""
        return f"{self.kind}, {self.ranks} rank{'s' * (self.ranks > 1)}{where}"


def ways(
    options: Options, counts: Sequence[int], found: There, nnodes: Sequence[int] = (1,)
) -> tuple[list[Way], list[str]]:
    """Make all ways to run a script, one process first, and say what is left out.

    Args:
        options: The options that all ways share.
        counts: The numbers of ranks on each node.
        found: The accelerators that are visible: one process sees the first.
        nnodes: The numbers of nodes.
    """
    gpus = found.names
    first = {devices.variable(found.kind, os.environ): gpus[0]} if len(gpus) > 1 else {}
    here = replace(options, nnodes=1, master_addr=None, master_port=None)
    alone = replace(here, nproc=1)
    rows, left_out = [Way(PLAIN, alone, 1, environ=first)], []
    if len(gpus) > 1 and found.kind != "cuda":
        left_out.append(CUDAS.format(kind=found.kind))
    elif len(gpus) > 1:
        rows.append(Way(DATA_PARALLEL, alone, len(gpus), (REPLICATE,)))
    else:
        left_out.append(NO_GPUS.format(gpus="is one" if gpus else "is none"))
    for nodes in nnodes:
        for count in counts:
            ranks = replace(options if nodes > 1 else here, nproc=count, nnodes=nodes)
            size = count * nodes
            rows.append(Way(GLOBAL, ranks, size, environ=first if size == 1 else {}))
            if size > 1:
                rows.append(Way(LOCAL, replace(ranks, view="local"), size))
    return rows, left_out
