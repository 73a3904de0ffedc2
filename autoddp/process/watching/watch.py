"""A thread of each rank, which reports where its rank stands; rank 0's finds out whether all hang.

A rank that waits in a collective can neither report nor be interrupted. So the thread that finds
that the job hangs writes where each rank stands and ends its process; the launchers end the others.
"""

from __future__ import annotations

import _thread
import contextlib
import json
import os
import socket
import threading
import time
import traceback
from dataclasses import replace
from typing import TYPE_CHECKING

from autoddp.comm.place import HERE
from autoddp.comm.position import WAITING
from autoddp.errors import RankEnded, one_line
from autoddp.process import streams
from autoddp.process.watching.judge import RankStatus, judge
from autoddp.process.watching.progress import ProgressProbe
from autoddp.report import PREFIX

if TYPE_CHECKING:
    from autoddp.comm.group import Group
    from autoddp.report import Report

OFTEN = 8  # looks within the time after which a job counts as hanging
LONGEST = 5.0  # seconds between two looks, at most
GRACE = 2.0  # seconds that rank 0 has to end the job itself
FLUSH = 1.0  # seconds to flush stdout and stderr, which the hanging thread may have locked
CODE = 1


class Watch:
    """The watch of one rank over itself, and of rank 0 over all ranks; a timeout of 0 is none."""

    def __init__(self, group: Group, report: Report, timeout: float) -> None:
        self.group, self.report, self.timeout = group, report, timeout
        self.rank, self.lines = group.rank, dict(group.channel.beats)
        self.progress = ProgressProbe()
        self.known = {rank: RankStatus(rank, "", "", 0.0, 0.0, "?") for rank in self.lines}
        self.heard = dict.fromkeys(self.lines, time.monotonic())
        self.ended: list[int] = []
        self._over, self._ended = threading.Event(), threading.Event()

    def __enter__(self) -> None:
        """Start the thread, unknown to `threading`, where the script would find it."""
        if self.timeout and self.lines:
            _thread.start_new_thread(self._run, ())
        else:
            self._ended.set()

    def __exit__(self, *_: object) -> None:
        """Stop the thread, as the script has ended: the launcher sees to the end of ranks."""
        self._over.set()
        self._ended.wait()

    def _run(self) -> None:
        try:
            self._look()  # at once: a rank that is stopped soon has reported where it is
            while not self._over.wait(min(LONGEST, self.timeout / OFTEN)):
                self._look()
        finally:
            self._ended.set()

    def _look(self) -> None:
        mine = self._status()
        for line in self.lines.values():
            line.send(json.dumps(vars(mine)).encode())
        self._hear()
        if self.rank == 0:
            ranks = [mine, *map(self._known, self.lines)]
            missing = judge(ranks, self.timeout)
            if missing is not None:
                self._end(self._report(ranks, missing))
        elif mine.waits >= self.timeout and self._known(0).heard >= self.timeout + GRACE:
            self._end(self._report([mine], [self._known(0)]))

    def _status(self) -> RankStatus:
        """Return where this rank stands, and what has ended its script if that is not shown yet."""
        kind, words, since = self.group.position.now
        waited, idle = time.monotonic() - since if kind else 0.0, self.progress.idle()
        behind = self.progress.behind() if self.group.native else 0.0
        idle = max(idle, behind)
        if behind and not kind:  # the rank waits for its device, and the device for other ranks
            kind, words = WAITING, self.group.collective_check.newest()
            waited = behind
        stack = [f"{socket.gethostname()}, process {os.getpid()}"]
        if HERE.raised is not None:
            raised = traceback.format_exception_only(HERE.raised)[-1].strip()
            stack.append(f"its script has raised {one_line(raised)}")
        stack += self.progress.stack()
        line = self.progress.line()
        return RankStatus(self.rank, kind, words, waited, idle, line, tuple(stack))

    def _known(self, rank: int) -> RankStatus:
        return replace(self.known[rank], heard=time.monotonic() - self.heard[rank])

    def _hear(self) -> None:
        for rank, line in list(self.lines.items()):
            try:
                came = line.arrived()
            except RankEnded:
                del self.lines[rank]  # the rank has ended
                self.ended.append(rank)
                continue
            for status in map(json.loads, came):
                self.heard[rank] = time.monotonic()
                if not status:
                    self._end([])
                self.known[rank] = RankStatus(**status)

    # ---- rank 0

    def _report(self, ranks: list[RankStatus], missing: list[RankStatus]) -> list[str]:
        since = min(r.still for r in ranks)
        lines = [
            f"{PREFIX} the job hangs: for {since:.0f} s no rank has got anywhere "
            f"({self._why(missing)}); it is ended, see --hang-timeout"
        ]
        for r in [*ranks, *(m for m in missing if m not in ranks)]:
            where, *frames = r.stack
            answers = "" if r.heard < self.timeout / 2 else ", it does not answer"
            lines.append(f"{PREFIX} rank {r.rank} ({where}{answers}) {r.does}")
            lines += [f"    {frame}" for frame in frames]
        return lines

    def _why(self, missing: list[RankStatus]) -> str:
        if missing:
            return "missing: " + ", ".join(f"rank {r.rank}" for r in missing)
        if self.ended:
            return ", ".join(f"rank {rank} has ended" for rank in self.ended)
        return "each waits for another"

    def _end(self, lines: list[str]) -> None:
        """Print the lines and end this process; rank 0 sees to it that the others can be ended.

        The main thread cannot be interrupted any more; its printed output is flushed if possible.
        """
        flushing = threading.Thread(target=streams.flush, daemon=True)
        flushing.start()
        flushing.join(FLUSH)
        with contextlib.suppress(OSError):
            begun = self.report.begun.end() if lines else ""
            os.write(2, (begun + "".join(f"{line}\n" for line in lines)).encode())
        near = range(self.group.world.local_world_size)
        for rank, line in self.lines.items() if self.rank == 0 else ():
            if rank not in near:  # its launcher does not see this rank's end
                line.send(b"{}")
        os._exit(CODE)
