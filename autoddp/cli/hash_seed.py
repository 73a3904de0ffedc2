"""The seed of Python's hashes, which must be the same on ranks that are not forks of one process.

Sets of strings then have the same order on all ranks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping, Sequence

from autoddp.options import variables

VARIABLE = "PYTHONHASHSEED"
# a launcher that started this process has set one of these
RANK = {"RANK", "SLURM_STEP_ID", "OMPI_COMM_WORLD_RANK"}
ORIGINAL = "AUTODDP_PYTHONHASHSEED"  # its value before this process was restarted


def restart(arguments: Sequence[str], environ: MutableMapping[str, str]) -> None:
    """Restart this process with the hash seed of other nodes, or of other ranks of a launcher.

    Python reads the seed when it starts. Ranks that are forks on one node need no seed. A seed that
    the user has set is kept, and the script sees the original variable.
    """
    original = environ.pop(ORIGINAL, None)
    if original is not None:
        if original:
            environ[VARIABLE] = original
        else:
            environ.pop(VARIABLE, None)
        return
    several = any(argument.startswith("--nnodes") for argument in arguments)
    separate = several or not (RANK | {variables.variable("nnodes")}).isdisjoint(environ)
    if separate and environ.get(VARIABLE, "") in ("", "random") and sys.executable:
        environ[ORIGINAL], environ[VARIABLE] = environ.get(VARIABLE, ""), "0"
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], dict(environ))
