"""Who makes a call that has side effects: each rank, or rank 0 for all.

`who_acts` has the table. `WhoActs.mode` finds its facts for the call that is being made, cheap ones
first; every feature for side effects asks it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import Enum
from typing import Any

from autoddp.comm.context import Code, Context
from autoddp.effects import paths
from autoddp.effects.overlay import Overlay
from autoddp.effects.ownership import Caller, anybody, loads_data
from autoddp.report import INSTALLED

# Devices, shared memory and the kernel's own files; and installed packages.
SYSTEM = ("/dev/", "/proc/", "/sys/")
PACKAGES = (*INSTALLED, "/__pycache__/")


class Mode(Enum):
    """How ranks make a call that has side effects."""

    PASS_THROUGH = "every rank makes it, for real"
    SYNCED = "rank 0 makes it, and all ranks get its outcome"
    UNSYNCED = "rank 0 makes it, the others make it in their overlay, and no rank waits"


class Place(Enum):
    """Where in the program a call is made."""

    OURS = "in autoddp's own code, or after the job"
    FETCH = "in a data set's fetch, or in a worker of a loader: ranks fetch different rows"
    APART = "in a thread, a child, a finalizer, at the end: ranks come here in no common order"
    SCRIPT = "on the script's thread: all ranks come here, in one order"


def who_acts(place: Place, caller: Caller, own: bool) -> Mode:
    """Return how ranks make a call.

    ===========================  ================  ==============  ============================
    where                        by whom           on what path    who acts
    ===========================  ================  ==============  ============================
    autoddp, a data set's fetch  anybody           any             each rank
    a thread, a child, the end   Python, compiler  any             each rank
    a thread, a child, the end   anybody           a rank's own    each rank
    a thread, a child, the end   any other         any other       rank 0, others in the overlay
    the script's thread          Python, compiler  any             each rank
    the script's thread          anybody           a rank's own    each rank
    the script's thread          a tracker         any other       rank 0, others in the overlay
    the script's thread          script, library   any other       rank 0 for all
    ===========================  ================  ==============  ============================

    Args:
        place: Where the call is made.
        caller: Whose call it is; see `Caller`.
        own: Whether it concerns a path that is each rank's own; see `WhoActs.is_own`.
    """
    if place in (Place.OURS, Place.FETCH) or caller is Caller.RANK or own:
        return Mode.PASS_THROUGH
    if place is Place.APART or caller is Caller.TRACKER:
        return Mode.UNSYNCED
    return Mode.SYNCED


class WhoActs:
    """The facts that `who_acts` asks for, on one rank."""

    def __init__(self, context: Context, rank: int, synced: bool) -> None:
        self.context, self.rank = context, rank
        self.synced = synced  # whether ranks wait for each other at all
        self.overlay = Overlay()  # private changes of a rank above 0

    def mode(self, *touched: Any, by: Callable[[], Caller] = anybody) -> Mode:
        """Return how ranks make the call that is being made.

        Args:
            touched: The paths that it concerns.
            by: Finds whose call it is: `anybody` where that does not matter, `whose`, or `scripts`
                for calls that each library makes on each rank.
        """
        place = self.place()
        if place is Place.OURS or place is Place.FETCH:
            return Mode.PASS_THROUGH
        return who_acts(place, by(), any(map(self.is_own, touched)))

    def place(self) -> Place:
        """Return where in the program this is."""
        context = self.context
        forked = context.in_fork()
        # the collector runs finalizers, inside of whatever code it interrupts
        inside = context.on_script_thread() and not context.collecting
        if context.over or context.is_internal_elsewhere():
            return Place.OURS
        if inside and context.depth[Code.INTERNAL]:
            return Place.OURS
        if (inside and context.depth[Code.FETCH]) or (forked and loads_data()):
            return Place.FETCH
        common = inside and self.synced and not (forked or context.ending)
        return Place.SCRIPT if common else Place.APART

    def is_own(self, path: Any) -> bool:
        """Return whether `path` is each rank's own: the system's, installed, private, temporary.

        A library's cache is not: it is a folder like any other.
        """
        if not isinstance(path, (str, bytes, os.PathLike)):
            return False
        full = paths.text(path)
        if full.startswith(SYSTEM) or any(part in full for part in PACKAGES):
            return True
        private = self.overlay.private
        return self.overlay.holds(full) or any(f"{full}/".startswith(f"{one}/") for one in private)

    def reads(self) -> bool:
        """Return whether this process reads from the overlay first."""
        return bool(self.rank) and not self.overlay.idle() and self.place() is not Place.OURS
