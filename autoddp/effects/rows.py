"""Patches of the outside world that are no more than a row: what is patched, its fate, and why.

`Outward.serve` in `outward.py` is the one place that decides what becomes of such a call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from autoddp.patching import Call, Patch


class Fate(Enum):
    """The part that rank 0 has in a call that the script makes on all ranks."""

    ASK = "rank 0 makes it, and all ranks get what it returns or raises"
    DO = "likewise, but once all ranks are here: it changes what slower ranks may still read"


def _always(call: Call) -> bool:
    return True


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class EffectRow:
    """A row of a table of patches.

    Attributes:
        fate: The part that rank 0 has in the call.
        targets: The functions, as "module:Dotted.path"; several are aliases, or share all else.
        why: The reason, which `autoddp patches` prints.
        once: Whether rank 0 alone makes the call where ranks do not meet (on a thread); else each
            rank makes its own there.
        when: Tells the calls that are meant; others are plain.
        pack: Turns what rank 0 got into what JSON can carry.
        unpack: Turns that into what the ranks return.
        optional: Whether the targets may be missing.
    """

    fate: Fate
    targets: tuple[str, ...]
    why: str
    once: bool = False
    when: Callable[[Call], bool] = _always
    pack: Callable[[Any], Any] = _same
    unpack: Callable[[Any], Any] = _same
    optional: bool = False

    def patch(self, feature: str) -> Patch:
        """Return the patch of this row, served by the method `serve` of its feature."""
        return Patch(feature, self.targets, self.why, "serve", self.optional)


def ask(*targets: str, why: str, **more: Any) -> EffectRow:
    """Make a row of functions that ask the outside world."""
    return EffectRow(Fate.ASK, targets, why, **more)


def do(*targets: str, why: str, **more: Any) -> EffectRow:
    """Make a row of functions that change the outside world."""
    return EffectRow(Fate.DO, targets, why, **more)
