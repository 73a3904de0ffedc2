"""The object that every feature is given: this rank's place, the options, the group, the report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from autoddp.comm.world import World
from autoddp.effects.engine import Effects
from autoddp.options import Options
from autoddp.report import Report

if TYPE_CHECKING:
    from autoddp.comm.group import Group
    from autoddp.view import View


@dataclass
class Run:
    """One rank's share of a job, which all its features use."""

    world: World
    options: Options
    group: Group
    view: View
    report: Report = field(default_factory=Report)
    draws_alike: bool = False  # whether all ranks began with one state of their generators
    # by loader: for how many seconds its batches were waited for
    waited: dict[str, float] = field(default_factory=dict)
    # called when the script has ended, before what it raised is shown
    ended: list[Callable[[], None]] = field(default_factory=list)
    effects: Effects = field(init=False)

    def __post_init__(self) -> None:
        self.effects = Effects(self.group, synced=self.options.view == "global")
