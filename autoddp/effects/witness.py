"""The check that says which code writes past Python's `open`, and so on every rank."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from datetime import timedelta
from types import FrameType
from typing import Any, ClassVar

import torch.distributed as dist

from autoddp.effects import paths
from autoddp.effects.engine import Mode
from autoddp.effects.outward import Outward
from autoddp.effects.ownership import caller
from autoddp.report import INSTALLED, is_users, users_frame, users_line

KIND = "witness"
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
# Python's own audit events, and which of their arguments are names that are changed. The making of
# folders is not among them: twice it either does not matter, or the second rank raises.
CHANGES = {
    "open": slice(1),
    "os.remove": slice(1),
    "os.rmdir": slice(1),
    "os.rename": slice(2),
    "os.link": slice(1, 2),
    "os.symlink": slice(1, 2),
    "os.truncate": slice(1),
    "sqlite3.connect": slice(1),
}
EVENTS = frozenset(CHANGES)
WAIT = timedelta(seconds=10)  # for rank 1 to end, if rank 0 has something to say


class Witness(Outward):
    """The feature that says on rank 0 what the user's code does past us on ranks 0 and 1 alike.

    Neither rank alone would do: what is behind `if autoddp.rank() == 0` is right.
    """

    name: ClassVar[str] = "witness"
    without: ClassVar[str] = "what every rank writes is not said"
    views: ClassVar[tuple[str, ...]] = ("global",)

    def setup(self, undo: ExitStack) -> None:
        """Add an audit hook; it stays for good, and so must cost nothing once we are gone."""
        super().setup(undo)
        self._seen: dict[str, tuple[str, str]] = {}
        if self.rank < 2 and self.effects.synced:
            active, self._ends = [self._look], 0
            self.run.ended.append(self._end)  # before a traceback is shown
            undo.callback(self._end)
            undo.callback(active.clear)

            def hook(event: str, args: tuple[Any, ...]) -> None:
                if event in EVENTS and active:
                    active[0](event, args)

            sys.addaudithook(hook)

    def _look(self, event: str, args: tuple[Any, ...]) -> None:
        """Look at what the script's own thread does outside of effects and fetches."""
        if self.effects.mode() is not Mode.SYNCED:
            return
        with self.effects.context.internal():
            path = self._changed(event, args)
            name = None if path is None else _called()
            if name is not None:
                self._note(name, (path or "").removeprefix(paths.here() + "/"))

    def _changed(self, event: str, args: tuple[Any, ...]) -> str | None:
        """Return the name that is changed, None if it is a cache's."""
        if event == "open" and not (isinstance(args[2], int) and args[2] & WRITES):
            return None
        names = args[CHANGES[event]]
        # what is below an open folder has no name here; rmtree goes that way once it has begun
        if any(isinstance(name, int) for name in names) or _by_handle(event, args):
            return None
        full = [
            os.path.normpath(os.path.join(paths.here(), os.fsdecode(name)))
            for name in names
            if name
        ]
        return next((path for path in full if not self.effects.keeps(path)), None)

    def _note(self, name: str, path: str) -> None:
        where = users_line()
        key = f"{KIND}/{where}/{name}"
        if key in self._seen:
            return
        what = f"{name} writes {path} past Python's open: every rank does"
        self._seen[key] = where, what
        if self.rank:
            self.run.group.store.set(key, "")
            if self.run.report.strict:
                self.run.report.doubt(KIND, where, what)

    def _end(self) -> None:
        """Say on rank 0 what another rank has seen itself do as well."""
        store = self.run.group.store
        self._ends += 1
        try:
            if self.rank:
                store.set(f"{KIND}/end {self._ends}", "")
            elif self._seen:
                store.wait([f"{KIND}/end {self._ends}"], WAIT)
        except dist.DistError:
            pass  # the other rank has not come to its end: one of both has failed, which is said
        for key, (where, what) in self._seen.items():
            if not self.rank and store.check([key]):
                self.run.report.say_once(KIND, where, what)


def _called() -> str | None:
    """Return the function of a known file that the user's code called, None if there is none."""
    file = caller()
    if not (is_users(file) or any(part in file for part in INSTALLED)):
        return None
    user = users_frame()
    if user is None:
        return None
    below: FrameType = sys._getframe()
    while below.f_back is not None and below.f_back is not user:
        below = below.f_back
    module = below.f_globals.get("__name__", "")
    if module.startswith("autoddp"):
        return user.f_code.co_qualname.replace("<module>", "the script")
    return f"{module}.{below.f_code.co_qualname}"


def _by_handle(event: str, args: tuple[Any, ...]) -> bool:
    """Return whether a name is relative to an open folder: its descriptor, or -1, comes last."""
    if event in ("open", "sqlite3.connect", "os.truncate"):
        return False
    return any(isinstance(one, int) and one >= 0 for one in args[1:])
