"""The state that all features of a rank share: its world, options, group, view and report."""

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
    """The state of a job on one rank, which all features use."""

    world: World
    options: Options
    group: Group
    view: View
    report: Report = field(default_factory=Report)
    draws_alike: bool = False  # whether all ranks started with the same states of generators
    # by loader: the seconds spent waiting for its batches
    waited: dict[str, float] = field(default_factory=dict)
    # called when the script has ended, before its exception is shown
    ended: list[Callable[[], None]] = field(default_factory=list)
    effects: Effects = field(init=False)

    def __post_init__(self) -> None:
        self.effects = Effects(self.group, synced=self.options.view == "global")
