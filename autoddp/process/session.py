"""The session of one rank: it joins the others, installs the features of a run, and undoes them."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from autoddp import __version__
from autoddp.comm.group import Group
from autoddp.comm.place import HERE
from autoddp.comm.world import World, hide, keep_to_libraries
from autoddp.effects.run import Run
from autoddp.options import Options
from autoddp.patching import Feature, Installation
from autoddp.process.devices import Devices
from autoddp.process.features import FEATURES
from autoddp.process.joining import join
from autoddp.process.script import Script
from autoddp.process.watching.watch import Watch
from autoddp.report import Report, library_modules, users_modules
from autoddp.view import View


@contextmanager
def member(
    world: World,
    options: Options,
    given: Devices,
    report: Report,
    script: Script | None,
) -> Iterator[Run]:
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
    nodes = len(group.leaders())
    report.say(
        f"{world.world_size} ranks on {nodes} node{'s' * (nodes != 1)}, "
        f"{backend} ({why}), {options.view} view"
    )
    ran = (script.name, *script.args) if script is not None else tuple(sys.argv)
    with session(world, options, group, report) as run:
        yield run
    if world.rank == 0 and options.report is not None:
        about = {"script": ran[0], "arguments": ran[1:], "ranks": world.world_size, "nodes": nodes}
        write(options.report, report, about | {"backend": backend, "view": options.view})


@contextmanager
def session(world: World, options: Options, group: Group, report: Report) -> Iterator[Run]:
    """Make this process a rank inside, by all features that the options leave on; undo it after.

    With one rank in the world nothing is patched.
    """
    view = View(group, options.draws, report, options.batchnorm == "exact")
    run = Run(world, options, group, view, report)
    several, chosen = world.local_world_size < world.world_size, list[Feature]()
    for feature in FEATURES if world.world_size > 1 else ():
        if options.view not in feature.views:
            continue
        if feature.name in options.disable:
            report.say_once("disabled", f"--disable {feature.name}", feature.without)
        elif feature.wanted(options) and (several or not feature.apart):
            chosen.append(feature(run))
    installation = Installation(chosen, users_modules, library_modules)
    with installation, Watch(group, report, options.hang_timeout):
        yield run


def write(path: str, report: Report, about: dict[str, Any]) -> None:
    """Write the file of --report: what ran, how it ended, and all decisions with their reasons."""
    python = platform.python_version()
    versions = {"autoddp": __version__, "torch": torch.__version__, "python": python}
    try:
        Path(path).write_text(report.to_json(versions=versions, exit=report.exit, **about))
    except OSError as error:  # the script has ended, and its outcome is what counts
        report.say(f"--report: {path} cannot be written ({error.strerror})")
