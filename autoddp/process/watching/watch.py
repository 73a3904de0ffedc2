"""A thread of each rank: it says where its rank stands, and on rank 0 judges what all have said.

A rank that waits in a collective cannot say anything itself, nor be told: so the thread that finds
that the job hangs writes where each rank stands and ends its process; the launchers end the others.
"""

from __future__ import annotations

import _thread
import contextlib
import json
import os
import signal
import socket
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any

from autoddp.comm.place import HERE
from autoddp.comm.position import COLLECTIVE
from autoddp.errors import Disagreement, RankEnded, one_line
from autoddp.process import streams
from autoddp.process.watching.device import Behind
from autoddp.process.watching.judge import Diagnosis, RankStatus, judge
from autoddp.process.watching.pulse import ProgressProbe
from autoddp.report import PREFIX

if TYPE_CHECKING:
    from autoddp.comm.group import Group
    from autoddp.report import Report

OFTEN = 8  # looks within the time after which a job counts as hanging
LONGEST = 5.0  # seconds between two looks, at most
ANSWER = 2.0  # seconds in which the ranks say their stacks
FLUSH = 1.0  # seconds to flush stdout and stderr, which the hanging thread may have locked
CODE = 1


class Watch:
    """The watch of one rank over itself, and of rank 0 over all ranks."""

    def __init__(self, group: Group, report: Report, timeout: float) -> None:
        self.group, self.report, self.timeout = group, report, timeout
        self.rank, self.lines = group.rank, dict(group.channel.beats)
        self.pulse = ProgressProbe(threading.get_ident(), threading.get_native_id())
        self.behind = Behind()
        self.where = f"{socket.gethostname()}, process {os.getpid()}"
        self.said = timeout  # length of a wait from which on it is spoken of
        self.known = {rank: _unheard(rank) for rank in self.lines}
        self.heard = dict.fromkeys(self.lines, time.monotonic())
        self.ended: list[int] = []
        self.stacks: dict[int, list[str]] = {}
        self._over, self._ended = threading.Event(), threading.Event()

    def start(self) -> None:
        """Start the thread, unknown to `threading`, where the script would find it."""
        _thread.start_new_thread(self._run, ())

    def stop(self) -> None:
        """Stop the thread, as the script has ended: the launcher sees to the end of ranks."""
        self._over.set()
        self._ended.wait()

    def _run(self) -> None:
        try:
            self._watch()
        finally:
            self._ended.set()

    def _watch(self) -> None:
        period = min(LONGEST, self.timeout / OFTEN)
        # the first look is at once, so that a rank that is stopped soon has told its process
        while True:
            try:
                self._look()
            except Disagreement as error:
                self._end([f"{PREFIX} {error}"])
            if self._over.wait(period):
                return

    def _look(self) -> None:
        standing, passed = self._standing(), self.group.collective_check.recent()
        for line in self.lines.values():
            line.send(json.dumps(["at", vars(standing)]).encode())
            if self.rank and passed:
                line.send(json.dumps(["passed", passed]).encode())
        self._hear()
        self.group.collective_check.look()
        if self.rank == 0:
            self._judge(standing)
        elif standing.waits >= self.timeout and self._age(0) >= self.timeout + ANSWER:
            self._end(self._report([standing], [self.known[0]]))

    def _standing(self) -> RankStatus:
        kind, words, since = self.group.position.now
        waited, idle = time.monotonic() - since if kind else 0.0, self.pulse.idle()
        behind = self.behind.waits(self.pulse.places()) if self.group.native else 0.0
        if behind:
            idle = max(idle, behind)
            if not kind:  # the rank waits for its device, and the device for other ranks
                kind, words, waited = (
                    COLLECTIVE,
                    self.group.collective_check.newest(),
                    behind,
                )
        return RankStatus(self.rank, kind, words, waited, idle, self.pulse.line(), os.getpid())

    def _stack(self) -> list[str]:
        """Return where this rank stands, and what has ended its script if that is not shown yet."""
        raised = []
        if HERE.raised is not None:
            words = traceback.format_exception_only(HERE.raised)[-1]
            raised = [f"its script has raised {one_line(words.strip())}"]
        return [self.where, *raised, *self.pulse.stack()]

    def _age(self, rank: int) -> float:
        return time.monotonic() - self.heard[rank]

    def _hear(self) -> None:
        for rank, line in list(self.lines.items()):
            try:
                came = line.arrived()
            except RankEnded:
                del self.lines[rank]  # the rank has come to its end
                self.ended.append(rank)
                continue
            for what, content in map(json.loads, came):
                self.heard[rank] = time.monotonic()
                self._note(rank, what, content)

    def _note(self, rank: int, what: str, content: Any) -> None:
        if what == "at":
            self.known[rank] = RankStatus(**content)
        elif what == "passed":
            self.group.collective_check.hear_recent(rank, content)
        elif what == "stack":
            self.stacks[rank] = content
        elif what == "tell":
            self.lines[0].send(json.dumps(["stack", self._stack()]).encode())
        elif what == "end":
            self._end([])

    # ---- rank 0

    def _judge(self, own: RankStatus) -> None:
        others = [self.known[rank] for rank in self.lines]
        ranks = [own, *(RankStatus(**vars(r) | {"heard": self._age(r.rank)}) for r in others)]
        case, missing = judge(ranks, self.timeout)
        waited = max((r.waits for r in ranks), default=0.0)
        if case is Diagnosis.STUCK:
            self._ask()
            self._end(self._report(ranks, missing))
        elif case is Diagnosis.FINE:
            self.said = self.timeout
        elif self.report.prompts:  # the user knows who is waited for, and for what
            self.said = waited + self.timeout
        elif waited >= self.said:
            self.said = 2 * waited  # again when it is twice as long
            self.report.say(_slow(ranks, missing))

    def _ask(self) -> None:
        """Have all ranks say their stacks, and wait for that for `ANSWER` seconds at most."""
        for line in self.lines.values():
            line.send(json.dumps(["tell", None]).encode())
        deadline = time.monotonic() + ANSWER
        while set(self.lines) - set(self.stacks) and time.monotonic() < deadline:
            self._hear()
            time.sleep(0.02)

    def _report(self, ranks: list[RankStatus], missing: list[RankStatus]) -> list[str]:
        self.stacks[self.rank] = self._stack()
        since = min(r.still for r in ranks)
        lines = [
            f"{PREFIX} the job hangs: for {since:.0f} s no rank has got anywhere "
            f"({self._why(missing)}); it is ended, see --hang-timeout"
        ]
        for r in [*ranks, *(m for m in missing if m not in ranks)]:
            where, *frames = self.stacks.get(r.rank, ["it does not answer"])
            lines.append(f"{PREFIX} rank {r.rank} ({where}) {_does(r)}")
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

        The main thread cannot be told anything any more; its printed output is flushed if possible.
        """
        flushing = threading.Thread(target=streams.flush, daemon=True)
        flushing.start()
        flushing.join(FLUSH)
        with contextlib.suppress(OSError):
            begun = self.report.begun.end() if lines else ""
            os.write(2, (begun + "".join(f"{line}\n" for line in lines)).encode())
        if self.rank == 0:
            near = range(self.group.world.local_world_size)
            for rank, line in self.lines.items():
                if rank not in near:  # its launcher does not see this rank's end
                    line.send(json.dumps(["end", None]).encode())
                elif rank not in self.stacks and self.known[rank].pid:
                    # a stopped process would not heed its launcher
                    os.kill(self.known[rank].pid, signal.SIGCONT)
        os._exit(CODE)


def _unheard(rank: int) -> RankStatus:
    return RankStatus(rank, "", "", 0.0, 0.0, "?")


def _does(r: RankStatus) -> str:
    if r.waits:
        return f"has waited for {r.waits:.0f} s in «{r.words}»"
    busy = f", idle for {r.idle:.0f} s" if r.idle >= 1 else ""
    return f"is at {r.line}{busy}"


def _slow(ranks: list[RankStatus], missing: list[RankStatus]) -> str:
    waiting = max(ranks, key=lambda r: r.waits)
    whom = ", ".join(f"rank {r.rank}, at {r.line}" for r in missing)
    return (
        f"rank {waiting.rank} has waited for {waiting.waits:.0f} s in «{waiting.words}» for {whom}"
    )
