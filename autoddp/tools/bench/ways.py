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
LEFT_OUT = "DataParallel is left out: it takes several CUDA GPUs, and here is {}"


@dataclass(frozen=True)
class Way:
    """A way to run a script: options, devices, changes and environment."""

    label: str  # what it is called in a table: its kind, or the folder of a recording
    options: Options
    ranks: int
    devices: int  # GPUs or ranks
    changes: tuple[str, ...] = ()  # see `RecordedScript`
    environ: Mapping[str, str] = field(default_factory=dict)

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
    rows, left_out = [Way(PLAIN, alone, 1, 1, environ=first)], []
    if len(gpus) > 1 and found.kind == "cuda":
        rows.append(Way(DATA_PARALLEL, alone, 1, len(gpus), (REPLICATE,)))
    else:
        left_out.append(LEFT_OUT.format(f"{len(gpus)} {found.kind}" if gpus else "none"))
    for ranks in (count for count in counts if count != 1):
        for label, view in ((GLOBAL, "global"), (LOCAL, "local")):
            rows.append(Way(label, replace(options, nproc=ranks, view=view), ranks, ranks))
    return rows, left_out
