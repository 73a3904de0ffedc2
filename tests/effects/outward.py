"""Ranks with only some features installed, for tests of side effects."""

from __future__ import annotations

import os
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from autoddp.comm.group import Group
from autoddp.effects.run import Run
from autoddp.options import Options
from autoddp.patching import Feature, Installation
from autoddp.report import library_modules
from tests.support.ranks import run_ranks


@contextmanager
def installed(group: Group, *features: type[Feature], view: str = "global") -> Iterator[Run]:
    """Install `features` on this rank, without a view."""
    run = Run(group.world, Options(view=view), group, types.SimpleNamespace())
    with Installation([feature(run) for feature in features], libraries=library_modules):
        yield run


def on_ranks(
    script: Callable[[Run], Any],
    nproc: int,
    *features: type[Feature],
    folder: Any = None,
    before: Callable[[int], None] = lambda rank: None,
    view: str = "global",
) -> list[Any]:
    """Run `before(rank)` and `script(run)` on each rank in `folder`; return the results."""

    def rank(group: Group) -> Any:
        if folder is not None:
            os.chdir(folder)
        before(group.rank)
        with installed(group, *features, view=view) as run:
            return script(run)

    return run_ranks(rank, nproc, timeout=150)  # other processes that a library starts import much


def raised(act: Callable[[], Any]) -> tuple[str, str]:
    """The type and the text of the exception of `act`."""
    try:
        act()
    except BaseException as error:
        return type(error).__name__, str(error)
    return "", ""
