"""The form in which a script is launched, as some scripts are distributed by themselves.

A script is launched as distributed only if it joins a process group under no condition that depends
on a launcher, so that `python` alone could not run it. Any other script runs on ranks that each see
one process; if it makes a process group after all, the feature `groups` refuses that and names the
option.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from autoddp.process.script import Script
from autoddp.process.source import FLAGS, SourceFacts, read


class Kind(Enum):
    """The ways in which the processes of a script are started."""

    VIEW = "ranks, of which each sees one process"
    RANKS = "ranks as torchrun starts them"
    ONCE = "one process, which starts the others itself"


@dataclass(frozen=True)
class LaunchForm:
    """The form in which a script is launched, and the facts in its source that decide it."""

    kind: Kind
    facts: SourceFacts

    def message(self, name: str) -> str:
        """Return the line printed at the start of a script that is distributed by itself."""
        line, flag = self.facts.line, self.facts.flag
        if self.kind is Kind.ONCE:
            how = "run once, as python would; --nproc is left to it"
            return f"{name} starts its ranks itself ({line}): {how}"
        launched = f"launched as torchrun would{flag and f' with {flag}'}, nothing else is done"
        if not line:
            return f"--own-ddp yes: {name} is {launched}"
        return f"{name} calls init_process_group itself ({line}): {launched}"

    def arguments(self, given: tuple[str, ...], local_rank: int) -> tuple[str, ...]:
        """Add the local rank to the script's arguments, if it takes one and the user gave none."""
        flag = self.facts.flag
        if not flag or any(argument.partition("=")[0] in FLAGS for argument in given):
            return given
        return (f"{flag}={local_rank}", *given)


def of(script: Script, own_ddp: str) -> LaunchForm:
    """Choose the form of launch by the script's source and the option `--own-ddp`.

    Raises:
        BadInput: There is no such script, or it cannot be read or run.
    """
    facts = SourceFacts() if own_ddp == "no" else read(script.find(), script.folder())
    own = Kind.ONCE if facts.starts else Kind.RANKS
    return LaunchForm(own if facts.always or own_ddp == "yes" else Kind.VIEW, facts)
