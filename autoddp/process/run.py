"""What every feature is given: who we are, what the user wants, the other ranks, the report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from autoddp.comm.world import World
from autoddp.effects.engine import Effects
from autoddp.options import Options
from autoddp.report import Report

if TYPE_CHECKING:
    from autoddp.comm.group import Group
    from autoddp.view import View


@dataclass
class Run:
    """One rank's share of a job."""

    world: World
    options: Options
    group: Group
    view: View
    report: Report = field(default_factory=Report)
    draws_alike: bool = False  # all ranks began with one state of their generators
    waited: dict[str, Any] = field(
        default_factory=dict
    )  # by loader: `seconds` that its batches were waited for
    ended: list[Callable[[], None]] = field(
        default_factory=list
    )  # when the script has, before it is shown how
    effects: Effects = field(init=False)

    def __post_init__(self) -> None:
        self.effects = Effects(self.group, exchange=self.options.view == "global")
