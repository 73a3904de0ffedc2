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

    label: str  # what it is called in a table: its kind, or the folder of a recording
    options: Options
    devices: int  # GPUs or ranks
    changes: tuple[str, ...] = ()  # see `RecordedScript`
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """Return the number of ranks on all nodes together."""
        return (self.options.nproc or 1) * self.options.nnodes

    @property
    def title(self) -> str:
        """Return the way's name in a sentence."""
        return f"{self.label}, {self.ranks} ranks" if self.ranks > 1 else self.label


def ways(options: Options, counts: Sequence[int], found: There) -> tuple[list[Way], list[str]]:
    """Make all ways to run a script, one process first, and say what is left out."""
    gpus = found.names
    # one process sees the first of several
    first = {devices.variable(found.kind, os.environ): gpus[0]} if len(gpus) > 1 else {}
    alone = replace(options, nproc=1)
    rows, left_out = [Way(PLAIN, alone, 1, environ=first)], []
    if len(gpus) > 1 and found.kind != "cuda":
        left_out.append(CUDAS.format(kind=found.kind))
    elif len(gpus) > 1:
        rows.append(Way(DATA_PARALLEL, alone, len(gpus), (REPLICATE,)))
    else:
        left_out.append(NO_GPUS.format(gpus="is one" if gpus else "is none"))
    for ranks in (replace(options, nproc=count) for count in counts if count != 1):
        rows.append(Way(GLOBAL, ranks, ranks.nproc or 1))
        rows.append(Way(LOCAL, replace(ranks, view="local"), ranks.nproc or 1))
    return rows, left_out
