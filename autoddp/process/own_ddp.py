"""The form in which a script is launched, as some scripts are distributed by themselves.

A script is launched as distributed only if it joins a process group under no condition that depends
on a launcher, so that `python` alone could not run it. Any other script runs on ranks that each see
one process; if it makes a process group after all, the feature `groups` refuses that and names the
option.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from autoddp.process import source
from autoddp.process.script import Script
from autoddp.process.source import FLAGS, JOIN, Found


class Kind(Enum):
    """The ways in which the processes of a script are started."""

    VIEW = "ranks, of which each sees one process"
    RANKS = "ranks as torchrun starts them"
    ONCE = "one process, which starts the others itself"


@dataclass(frozen=True)
class LaunchForm:
    """The form in which a script is launched, and what in its source decides that.

    Attributes:
        kind: The form.
        line: Where the script starts ranks, else where it joins a process group; empty: nowhere.
        flag: --local_rank or --local-rank, where its parser takes that.
    """

    kind: Kind = Kind.VIEW
    line: str = ""
    flag: str = ""

    def message(self, name: str) -> str:
        """Return the line printed at the start of a script that is distributed by itself."""
        if self.kind is Kind.ONCE:
            how = "run once, as python would; --nproc is left to it"
            return f"{name} starts its ranks itself ({self.line}): {how}"
        given = f" with {self.flag}" if self.flag else ""
        launched = f"launched as torchrun would{given}, nothing else is done"
        if not self.line:
            return f"--own-ddp yes: {name} is {launched}"
        return f"{name} calls init_process_group itself ({self.line}): {launched}"

    def arguments(self, given: tuple[str, ...], local_rank: int) -> tuple[str, ...]:
        """Add the local rank to the script's arguments, if it takes one and the user gave none."""
        if not self.flag or any(argument.partition("=")[0] in FLAGS for argument in given):
            return given
        return (f"{self.flag}={local_rank}", *given)


def of(script: Script, own_ddp: str) -> LaunchForm:
    """Choose the form of launch by the script's source and the option `--own-ddp`.

    Raises:
        BadInput: There is no such script, or it cannot be read or run.
    """
    if own_ddp == "no":
        return LaunchForm()
    path, folder = script.find(), script.folder()
    found = source.found(path, folder)
    joins = [each for each in found if each.name == JOIN and each.line]
    starts = [
        each
        for each in found
        if joins and each.target is not None and source.joins(each.target, path, folder)
    ]
    surest = min(starts or joins, key=lambda each: each.maybe, default=Found(True, "", ""))
    if surest.maybe and own_ddp == "auto":
        return LaunchForm()
    flag = next((each.name for each in found if each.name in FLAGS), "")
    return LaunchForm(Kind.ONCE if starts else Kind.RANKS, surest.line, flag)
