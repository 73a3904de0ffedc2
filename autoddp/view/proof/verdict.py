"""The result of a proof: whether a call is row-wise, and what is known of it then."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from autoddp.view.places import Place
from autoddp.view.proof.counts import Decisions

NOTHING = Decisions()


@dataclass(frozen=True)
class Verdict:
    """The result of a proof.

    Attributes:
        outs: The batch dimension of each leaf that comes back, or None where it holds no batch.
        layout: What holds these leaves: the result, and what the call was given, as it left it.
        draws: Whether the call draws random numbers of torch's.
        places: Where the batch lies in each draw.
        decisions: What it decides by how many rows there are.
        reason: Why not, in words; empty if the call is row-wise.
        sure: False where nothing was proven, as where all rows were alike: ask again.
    """

    outs: tuple[int | None, ...] = ()
    layout: Hashable = None
    draws: bool = False
    places: tuple[Place, ...] = ()
    decisions: Decisions = NOTHING
    reason: str = ""
    sure: bool = True
