"""The form in which a script is launched, as some scripts are distributed by themselves.

A script is launched as distributed only if `python` would make it so, too: where it joins a process
group whatever a launcher has set. Else each rank sees one process: the script goes the way that it
goes under `python`, and should that lead to a process group after all, the feature `groups` says
what to do.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from autoddp.process.source import FLAGS, SourceFacts


class Kind(Enum):
    """The ways in which the processes of a script are started."""

    VIEW = "ranks, of which each sees one process"
    RANKS = "ranks as torchrun starts them"
    ONCE = "one process, which starts the others itself"


@dataclass(frozen=True)
class LaunchForm:
    """The form that was decided on for a script, and the line of the script that decided it."""

    kind: Kind
    line: str = ""
    always: bool = False  # whether that line runs whatever the environment
    flag: str = ""  # option by which the script's parser takes its local rank

    def message(self, name: str) -> str:
        """Return the line printed at the start: which of two ways the script goes."""
        if self.kind is Kind.VIEW:
            return (
                f"{name} calls init_process_group where a launcher has set its variables "
                f"({self.line}): run as python runs it, without; --own-ddp yes takes that branch"
            )
        passed = f" with {self.flag}" if self.flag else ""
        launched = f"launched as torchrun would{passed}, nothing else is done"
        if not self.line:
            return f"--own-ddp yes: {name} is {launched}"
        other = "" if self.always else " (--own-ddp no takes its one-process branch, on all ranks)"
        return f"{name} calls init_process_group itself ({self.line}): {launched}{other}"

    def arguments(self, given: tuple[str, ...], local_rank: int) -> tuple[str, ...]:
        """Add the local rank to the script's arguments, if it takes one and the user gave none."""
        if not self.flag or any(argument.partition("=")[0] in FLAGS for argument in given):
            return given
        return (f"{self.flag}={local_rank}", *given)


def of(found: SourceFacts, own_ddp: str) -> LaunchForm:
    """Choose the form of launch by the script's source and the option `--own-ddp`."""
    if own_ddp == "no":
        return LaunchForm(Kind.VIEW)
    forced = own_ddp == "yes"
    if found.starts and (found.always or forced):
        return LaunchForm(Kind.ONCE, found.starts, found.always)
    joins = "" if found.starts else found.joins
    if forced or (joins and (found.always or (found.flag and not found.asks))):
        return LaunchForm(Kind.RANKS, found.joins, found.always, found.flag)
    return LaunchForm(Kind.VIEW, joins if found.asks else "")


def once(name: str, line: str) -> str:
    """Return the line printed at the start of a script that starts its ranks itself."""
    return (
        f"{name} starts its ranks itself ({line}): run once, as python would; --nproc is left to it"
    )


def twice(name: str, line: str, size: int) -> str:
    """Return why a script that starts its ranks itself cannot be a rank of another launcher."""
    return (
        f"{name} starts its ranks itself ({line}), but another launcher has started {size} "
        "processes of it already; start it by autoddp run or by python"
    )
