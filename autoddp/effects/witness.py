"""A check that reports code that bypasses Python's `open`, and so writes on every rank."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack, suppress
from datetime import timedelta
from typing import Any, ClassVar

import torch.distributed as dist

from autoddp.effects import paths
from autoddp.effects.effect_feature import EffectFeature
from autoddp.effects.ownership import caller, whose
from autoddp.effects.who_acts import Mode
from autoddp.report import INSTALLED, is_users, users_line

KIND = "witness"
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
EVENTS = ("open", "sqlite3.connect")  # Python's own audit events


class Witness(EffectFeature):
    """The feature that reports files which both rank 0 and rank 1 write without a patched function.

    A write by only one of them is correct, as it may follow `if autoddp.rank() == 0`.
    """

    name: ClassVar[str] = "witness"
    without: ClassVar[str] = "files that every rank writes are not reported"
    views = ("global",)

    def setup(self, undo: ExitStack) -> None:
        """Add an audit hook, which cannot be removed, and does nothing after the job."""
        super().setup(undo)
        self._seen: dict[str, str] = {}  # writes, by the user's line
        if self.rank < 2 and self.effects.synced:
            active = self._active = [self._look]
            self.run.ended.append(self._end)  # before a traceback is shown
            undo.callback(self._end)

            def hook(event: str, args: tuple[Any, ...]) -> None:
                if event in EVENTS and active:
                    active[0](event, args)

            sys.addaudithook(hook)

    def _look(self, event: str, args: tuple[Any, ...]) -> None:
        """Record a write by the script's thread outside of effects and fetches."""
        reads = event == "open" and not (isinstance(args[2], int) and args[2] & WRITES)
        has_path = isinstance(args[0], (str, bytes)) and args[0] not in ("", ":memory:")
        # of a folder, a file without a name or that of an opener is written, as by `tempfile`
        if (
            reads
            or not has_path
            or paths.is_folder(args[0])
            or self.effects.mode(args[0], by=whose) is not Mode.SYNCED
        ):
            return
        with self.context.internal():
            file, where = caller(), users_line()
            reportable = is_users(file) or any(part in file for part in INSTALLED)
            path = paths.text(args[0]).removeprefix(paths.here() + "/")
            if not reportable or not where or where in self._seen:
                return
            what = self._seen[where] = f"every rank writes {path}, as this bypasses Python's open"
            if self.rank:
                self.run.group.store.set(f"{KIND}/{where}", "")
                if self.run.report.strict:  # raise before the write
                    self.run.report.doubt(KIND, where, what)

    def _end(self) -> None:
        """Report on rank 0 the writes that rank 1 has made, too."""
        if not self._active:
            return
        self._active.clear()
        store = self.run.group.store
        with suppress(dist.DistError):  # one of the two ranks has failed, which is reported
            if self.rank:
                store.set(f"{KIND}/end", "")
            elif self._seen:
                store.wait([f"{KIND}/end"], timedelta(seconds=10))
        for where, what in self._seen.items():
            if not self.rank and store.check([f"{KIND}/{where}"]):
                self.run.report.say_once(KIND, where, what)
