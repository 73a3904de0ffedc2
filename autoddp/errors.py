"""The exceptions that autoddp raises, as a tree.

AutoDDPError
├── BadInput            a request that cannot be carried out: one line, exit code 2
├── PatchTargetMissing  a package lacks a function that a feature patches
├── Disagreement        ranks have different values, or are at different places
├── RankEnded           another rank has ended, for which this one waits
├── LostGradient        a sharded batch reached code that would drop its gradient
├── NodeFailed          a node with a folder of its own could not repeat a change of rank 0
├── ScratchFailed       a rank above 0 has no space for its private copies of files
├── OutOfReach          a program was used where rank 0 cannot run it for all ranks
└── RemoteError         an exception of rank 0 that cannot be rebuilt on this rank
"""

from __future__ import annotations

import re


class AutoDDPError(Exception):
    """The base class of every exception that autoddp raises."""


class BadInput(AutoDDPError):
    """A request that cannot be carried out; one line has the value, the reason and the fix."""

    def __init__(self, text: str) -> None:
        super().__init__(one_line(text))


class PatchTargetMissing(AutoDDPError):
    """A name that a feature patches does not exist in the installed package."""


class Disagreement(AutoDDPError):
    """Ranks have different values that must be equal, or are at different places."""


class RankEnded(AutoDDPError):
    """Another rank has ended, for which this one waits."""


class LostGradient(AutoDDPError):
    """A sharded batch reached an operator below autograd, where its gradient would be lost."""


class NodeFailed(AutoDDPError):
    """A change that succeeded on rank 0 failed on a node that does not share its folder."""


class ScratchFailed(AutoDDPError):
    """A rank above 0 cannot write its private copies of files."""


class OutOfReach(AutoDDPError):
    """A program was used where rank 0 cannot answer for all ranks."""


class RemoteError(AutoDDPError):
    """An exception of rank 0 that cannot be rebuilt on this rank; it has the same text."""


def one_line(text: str) -> str:
    """Escape all line breaks in `text`, which arguments and file names may contain."""
    return re.sub("[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]", lambda found: repr(found[0])[1:-1], text)
