"""The session of one rank: it makes the features of a run, installs them, and undoes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from autoddp.comm.group import Group
from autoddp.comm.world import World
from autoddp.effects.run import Run
from autoddp.options import Options
from autoddp.patching import Feature, Installation
from autoddp.process.features import FEATURES
from autoddp.process.watching.watch import Watch
from autoddp.report import Report, library_modules, users_modules
from autoddp.view import View


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
    if group.unshared:
        slower = "the ranks of a machine use gloo, which takes longer than shared memory"
        report.say_once("memory", "", f"{slower} ({group.unshared})")
    installation = Installation(chosen, users_modules, library_modules)
    with installation, Watch(group, report, options.hang_timeout):
        yield run
