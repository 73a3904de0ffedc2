"""The seed of Python's hashes, the same on ranks that are no forks of one process.

Sets of names then have one order on all ranks, as in one process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping, Sequence

from autoddp.options import variables

VARIABLE = "PYTHONHASHSEED"
# where one of these is set, a launcher started this process
RANK = {"RANK", "SLURM_STEP_ID", "OMPI_COMM_WORLD_RANK"}
BEFORE = "AUTODDP_PYTHONHASHSEED"  # what it was before this process started anew


def restart(arguments: Sequence[str], environ: MutableMapping[str, str]) -> None:
    """Start this process anew with the seed of the other nodes, or of a launcher's other ranks.

    Python reads the seed when it starts. Ranks on one node are forks and need no seed. A seed that
    the user has set stays, and the script sees the variable as it was.
    """
    before = environ.pop(BEFORE, None)
    if before is not None:
        if before:
            environ[VARIABLE] = before
        else:
            environ.pop(VARIABLE, None)
        return
    several = any(argument.startswith("--nnodes") for argument in arguments)
    apart = several or not (RANK | {variables.variable("nnodes")}).isdisjoint(environ)
    if apart and environ.get(VARIABLE, "") in ("", "random") and sys.executable:
        environ[BEFORE], environ[VARIABLE] = environ.get(VARIABLE, ""), "0"
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], dict(environ))
