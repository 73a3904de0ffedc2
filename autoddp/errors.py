"""The exceptions that autoddp raises, as a tree.

AutoDDPError
├── BadInput            what the user asked for cannot be done: one line, exit code 2
├── PatchTargetMissing  this torch lacks something that a feature patches
├── Disagreement        ranks hold different values, or are at different places
├── RankEnded           another rank has ended, and this one waits for what it would do
├── LostGradient        a batch held by rows reached code that would drop its gradient
├── NodeFailed          what rank 0 wrote cannot be written on a node with a folder of its own
├── ScratchFailed       a rank above 0 has no room for its private copies of files
├── OutOfReach          a program is wanted where rank 0 cannot run it for all
└── RemoteError         rank 0 failed in a way that has no exception of its own here
"""

from __future__ import annotations

import re


class AutoDDPError(Exception):
    """The base class of every exception that autoddp raises."""


class BadInput(AutoDDPError):
    """An error in what the user asked for; one line says the value, the obstacle, the way out."""

    def __init__(self, text: str) -> None:
        super().__init__(one_line(text))


class PatchTargetMissing(AutoDDPError):
    """An error for a name that a feature patches and the installed package lacks."""


class Disagreement(AutoDDPError):
    """A difference between ranks, in a value that must be equal or in their places."""


class RankEnded(AutoDDPError):
    """The end of another rank; what this one would have learned from it will not come."""


class LostGradient(AutoDDPError):
    """A batch held by rows in an operator below autograd, where its gradient would be lost."""


class NodeFailed(AutoDDPError):
    """A failure on a node that does not share rank 0's folder, of what went well on rank 0."""


class ScratchFailed(AutoDDPError):
    """A failure of a rank above 0 to keep its writes to itself; the message says the way out."""


class OutOfReach(AutoDDPError):
    """A request for a program, which is rank 0's, where rank 0 cannot answer for all ranks."""


class RemoteError(AutoDDPError):
    """An exception of rank 0 that cannot be rebuilt on this rank; the text is rank 0's."""


def one_line(text: str) -> str:
    """Escape all ends of lines in `text`, which a user's words and file names may hold."""
    return re.sub("[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]", lambda found: repr(found[0])[1:-1], text)
