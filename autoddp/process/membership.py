"""A rank among the others: it joins them, and opens its session."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from autoddp import __version__
from autoddp.comm.place import HERE
from autoddp.comm.topology import leaders
from autoddp.comm.world import World, hide, keep_to_libraries
from autoddp.effects.run import Run
from autoddp.options import Options
from autoddp.process.devices import Devices
from autoddp.process.joining import join
from autoddp.process.script import Script
from autoddp.process.session import session
from autoddp.report import Report


@dataclass
class Member:
    """A rank that has joined; `ran` and `code` are what ran and how it ended, for --report."""

    run: Run
    ran: Sequence[str] = ()
    code: int | None = None


@contextmanager
def member(
    world: World,
    options: Options,
    given: Devices,
    report: Report,
    script: Script | None,
) -> Iterator[Member]:
    """Be a rank inside, which sees one process, or in the local view a launcher's variables.

    Args:
        world: Place of this rank.
        options: Options of the job.
        given: Devices of this node's ranks.
        report: Report of this rank.
        script: What is about to run; None where that is no file.
    """
    hidden = hide(os.environ)
    if options.view == "local":
        os.environ.update(hidden or world.variables(nodes=1))
    attempt = hidden.get("TORCHELASTIC_RESTART_COUNT", "0")
    group, backend, why = join(world, options, given, script, attempt, report.say)
    if options.view == "global":
        for name in ("OMP_NUM_THREADS", "NCCL_SOCKET_IFNAME"):
            keep_to_libraries(HERE.given, name)
    HERE.world = world
    nodes = len(leaders(group))
    report.say(
        f"{world.world_size} ranks on {nodes} node{'s' * (nodes != 1)}, "
        f"{backend} ({why}), {options.view} view"
    )
    with session(world, options, group, report) as run:
        mine = Member(run, tuple(sys.argv))
        yield mine
    if world.rank == 0 and options.report is not None:
        about = {"ranks": world.world_size, "nodes": nodes, "backend": backend}
        write(options.report, report, mine, about | {"view": options.view})


def write(path: str, report: Report, mine: Member, about: dict[str, Any]) -> None:
    """Write the file of --report: what ran, how it ended, and all decisions with their reasons."""
    script, *arguments = mine.ran
    python = platform.python_version()
    versions = {"autoddp": __version__, "torch": torch.__version__, "python": python}
    about |= {"script": script, "arguments": arguments, "exit": mine.code}
    try:
        Path(path).write_text(report.to_json(versions=versions, **about))
    except OSError as error:  # the script has ended, and its outcome is what counts
        report.say(f"--report: {path} cannot be written ({error.strerror})")
