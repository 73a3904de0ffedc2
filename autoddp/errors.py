"""Everything that autoddp raises.

AutoDDPError
├── BadInput            what the user asked for cannot be done: one line, exit code 2
├── PatchTargetMissing  this torch lacks something that a feature patches
├── Disagreement        ranks hold different values, or are at different places
├── RankEnded           another rank has ended, and this one waits for what it would do
│   └── Unreachable     its node, or the network to it, is lost
├── LostGradient        a batch held by rows reached code that would drop its gradient
├── TooLarge            a file on node 0 is too large to be handed to a node that lacks it
├── ScratchFailed       a rank above 0 has no room for its private copies of files
├── OutOfReach          a program is wanted where rank 0 cannot run it for all
└── RemoteError         rank 0 failed in a way that has no exception of its own here
"""

from __future__ import annotations

import re


class AutoDDPError(Exception):
    """The base of every error of ours."""


class BadInput(AutoDDPError):
    """What the user asked for cannot be done; the message is one line: value, world, fix."""

    def __init__(self, text: str) -> None:
        super().__init__(one_line(text))


class PatchTargetMissing(AutoDDPError):
    """A name that a feature patches does not exist in the installed package."""


class Disagreement(AutoDDPError):
    """A value that must be equal on all ranks is not, or ranks are at different places."""


class RankEnded(AutoDDPError):
    """Another rank has ended; what this one would have learned from it will not come."""


class Unreachable(RankEnded):
    """The kernel has given another rank's node up: no word of ours gets there."""


class LostGradient(AutoDDPError):
    """A batch held by rows reached an operator below autograd; its gradient would be lost."""


class TooLarge(AutoDDPError):
    """A file that only node 0 has is larger than what is handed over; the message says the way out."""


class ScratchFailed(AutoDDPError):
    """A rank above 0 cannot keep what it writes to itself; the message says the way out."""


class OutOfReach(AutoDDPError):
    """A program, which is rank 0's, is asked for where rank 0 cannot answer for all."""


class RemoteError(AutoDDPError):
    """Rank 0 raised an exception that cannot be rebuilt on this rank; the text is rank 0's."""


def one_line(text: str) -> str:
    """The text, in which what a user's words and file names hold ends no line."""
    return re.sub("[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]", lambda found: repr(found[0])[1:-1], text)
