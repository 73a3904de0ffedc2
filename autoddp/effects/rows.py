"""Patches of the outside world that are no more than a row: what is patched, its fate, and why.

`Outward.serve` in `outward.py` is the one place that decides what becomes of such a call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

from autoddp.patching import Call, Patch


class Fate(Enum):
    """The part that rank 0 has in a call that the script makes on all ranks."""

    ASK = "rank 0 makes it, and all ranks get what it returns or raises"
    DO = "likewise, but once all ranks are here: it changes what slower ranks may still read"
    EACH = "every rank makes it for itself, and a line says so"


@dataclass(frozen=True)
class EffectRow:
    """A row of a table of patches.

    Attributes:
        why: The reason, which `autoddp patches` prints; with EACH it is what is said.
        when: Tells the calls that are meant; others are plain.
        pack, unpack: Turn what rank 0 got into what JSON can carry, and that into what ranks get.
        harmless: Whether EACH is no doubt: `--strict` lets it be.
    """

    fate: Fate
    targets: tuple[str, ...]  # "module:Dotted.path"; several are aliases, or share all else
    why: str
    when: Callable[[Call], bool] = lambda _: True
    pack: Callable[[Any], Any] = lambda value: value
    unpack: Callable[[Any], Any] = lambda value: value
    harmless: bool = False
    optional: bool = False

    def patch(self, feature: str) -> Patch:
        """Return the patch of this row, served by the method `serve` of its feature."""
        return Patch(feature, self.targets, self.why, "serve", self.optional)


ask = partial(EffectRow, Fate.ASK)
do = partial(EffectRow, Fate.DO)
each = partial(EffectRow, Fate.EACH)
