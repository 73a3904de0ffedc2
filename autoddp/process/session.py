"""The session of one rank: it makes the features of a run, installs them, and undoes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch.utils.hooks import RemovableHandle

from autoddp.comm.group import Group
from autoddp.comm.world import World
from autoddp.effects.run import Run
from autoddp.options import Options
from autoddp.patching import Feature, Installation
from autoddp.process.features import FEATURES
from autoddp.process.watching.watch import Watch
from autoddp.report import Report, library_modules, users_modules
from autoddp.view import View

OURS = 1 << 40  # the number of the first hook of autoddp's own


@contextmanager
def session(world: World, options: Options, group: Group, report: Report) -> Iterator[Run]:
    """Make this process a rank inside, by all features that the options leave on; undo it after.

    With one rank in the world nothing is patched.
    """
    view = View(group, options.draws, report, options.batchnorm == "exact")
    run = Run(world, options, group, view, report)
    several = world.local_world_size < world.world_size
    chosen = [
        feature(run)
        for feature in FEATURES
        if world.world_size > 1
        and options.view in feature.views
        and feature.wanted(options)
        and feature.name not in options.disable
        and (several or not feature.apart)
    ]
    for feature in FEATURES if world.world_size > 1 else ():
        if options.view in feature.views and feature.name in options.disable:
            report.say_once("disabled", f"--disable {feature.name}", feature.without)
    if group.unshared:
        slower = "the ranks of a machine talk by gloo, which takes longer than shared memory"
        report.say_once("memory", "", f"{slower} ({group.unshared})")
    watch = (
        Watch(group, report, options.hang_timeout)
        if options.hang_timeout and group.size > 1
        else None
    )
    with _installed(chosen):
        if watch is not None:
            watch.start()
        try:
            yield run
        finally:
            if watch is not None:
                watch.stop()


def _installed(features: list[Feature]) -> Installation:
    """Install features; hooks that they register have numbers far from those that a script gets."""
    installation = Installation(features, users_modules, library_modules)
    before, RemovableHandle.next_id = RemovableHandle.next_id, OURS
    try:
        return installation.install()
    finally:
        RemovableHandle.next_id = before
