"""The check of collectives: rank 0 compares what ranks enter, and does small collectives itself.

All ranks run one program, so the n-th collective of a rank is the n-th of rank 0: of the same kind
and shape, after as many side effects, and at the same line of a file that both know by one name; a
file of code that a library writes for itself may have another name on each rank. A collective that
two ranks enter at different places hangs, crashes in the backend, or, where shapes happen to agree,
returns a sum of what does not belong together. So each rank stamps what it enters. Rank 0 compares
the stamps, and nobody goes on before it has. Where an accelerator waits, not the script, and in a
backward, nobody is waited for, and nothing is said either: how many such stamps there were, and a
sum over them, ride on the next meeting, and the thread that watches tells the newest ones (see
`Passed`).

A small tensor travels with its stamp, is reduced or gathered on rank 0 and comes back: one message
each way, which is faster than a ring of TCP connections. A large tensor goes
by the backend once the stamps agree. Ranks that share memory compare the stamps there, each for
itself, and reduce the small tensors, too; where these are not all of one place, they all go on as
if there were no such memory.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from time import monotonic  # a script's is patched
from typing import TYPE_CHECKING, Any, NoReturn

import torch.distributed as dist
from torch import Tensor

from autoddp import torch_internals
from autoddp.comm.channel import Lines
from autoddp.comm.passed import Passed, Recent
from autoddp.errors import Disagreement, RankEnded
from autoddp.report import places, users_frame

if TYPE_CHECKING:
    from torch.distributed import Store

    from autoddp.comm.line import Line
    from autoddp.comm.node_memory import NodeMemory

TOLD = 64  # of these, at a look of the thread that watches
MOST = 4096  # kinds of collective whose words are kept
DONE, PARTED, TELL = b"=", b"!", b"?"  # the first byte of what rank 0 says
WAITS = "waits"  # in the store: a rank does nothing more but to wait for its end
LEFT = 10.0  # seconds that a launcher has to end this rank once another one has failed
TICK = 0.02


class CollectiveCheck:
    """One rank's end of the check: rank 0 compares stamps, the others send theirs."""

    def __init__(self, rank: int, lines: Lines, store: Store) -> None:
        self.rank, self._lines, self._store = rank, lines, store
        self._words: dict[Any, str] = {}
        self.passed = Passed()
        self.memory: NodeMemory | None = None  # of all ranks, if they are on one node
        # on rank 0: what the others' threads have told
        self._heard: dict[int, Recent] = {}
        self._lock = threading.Lock()  # of the lines: a thread looks, too, see `watching`

    def words(self, what: str, x: Tensor) -> str:
        """Describe the collective that this rank is about to enter, with the user's line."""
        frame = users_frame(3)
        key = (what, x.dtype, x.shape, x.device.type, frame and (frame.f_code, frame.f_lineno))
        words = self._words.get(key)
        if words is None:
            if len(self._words) == MOST:
                self._words.clear()
            where = places.named(frame)
            dtype = str(x.dtype).removeprefix("torch.")
            device = "" if x.device.type == "cpu" else f" on {x.device.type}"
            words = self._words[key] = f"{what} of {dtype}{list(x.shape)}{device} at {where}"
        return words

    def pass_by(self, stamp: str) -> None:
        """Note the stamp of what this rank enters; nobody waits, and nothing is sent."""
        if self._lines:
            self.passed.add(stamp.encode())

    def meet(self, stamp: str, body: bytes, merge: Callable[[list[bytes]], bytes]) -> bytes:
        """Return what `merge` makes of all ranks' bodies on rank 0, once all are at this stamp.

        Raises:
            Disagreement: Two ranks are at different places; raised on all that wait here.
            RankEnded: A rank has ended.
        """
        self.passed.meet(stamp)
        # two threads of the script's may read a batch at once; and it is held to the end, as a rank
        # that was told may be at its next meeting before this one is over
        with self._lock:
            bodies = self._by_memory(stamp, body)
            if bodies is not None:
                made = merge(bodies)
            else:
                made = self._ask(stamp, body) if self.rank else self._lead(stamp, body, merge)
            self.passed.met()
        return made

    def _by_memory(self, stamp: str, body: bytes) -> list[bytes] | None:
        """Return all ranks' bodies, if they share memory, and all are at one place.

        Else, on all ranks, None: rank 0 finds out who is where, and says so.
        """
        if self.memory is None:
            return None
        try:
            said = self.memory.exchange(_message(stamp, self.passed.sum, body))
        except dist.DistNetworkError:
            return None
        found = [_read(message) for message in said or ()]
        alike = said is not None and all(
            past == found[0][1] and not apart(other.encode(), found[0][0].encode())
            for other, past, _ in found
        )
        return [theirs for *_, theirs in found] if alike else None

    def _ask(self, stamp: str, body: bytes) -> bytes:
        self._lines.say(_message(stamp, self.passed.sum, body))
        while True:
            try:
                said = self._lines.hear()
            except RankEnded as error:
                self._end(error, stamp)
            if said[:1] == PARTED:
                raise Disagreement(said[1:].decode())
            if said[:1] == DONE:
                return said[1:]
            self._lines.say(json.dumps(self.passed.recent()).encode())  # it was TELL

    def recent(self) -> Recent:
        """Return the newest stamps since the last meeting, for the thread that watches."""
        meetings, found = self.passed.recent()
        return meetings, found[-TOLD:]

    def hear(self, rank: int, recent: Recent) -> None:
        """Keep, on rank 0, what the thread that watches a rank has told of it."""
        self._heard[rank] = recent

    def look(self) -> None:
        """Compare, from another thread, what the ranks below this one have said so far.

        Raises:
            Disagreement: A rank is somewhere else than this one.
        """
        if self.rank or not self._lines:
            return
        own = self.passed.recent()
        for rank, recent in self._heard.items():
            self._compare(rank, recent, own)
        if not self._lock.acquire(blocking=False):
            return  # the script's own thread looks
        try:
            own = self.passed.recent()
            for rank, line in self._lines.items():
                said = line.peek()
                if said is not None:
                    # this rank is not at that meeting yet: it must not be past it either
                    stamp, past, _ = _read(said)
                    self._compare(rank, (own[0], [(_count(past), stamp)]), own)
        finally:
            self._lock.release()

    def wait_for_the_end(self) -> None:
        """Wait, after the backend has lost another rank, until a launcher ends this one.

        The lost rank's launcher tells of it; this rank is not the first that failed.
        """
        self._store.set(f"{WAITS}/{self.rank}", "")
        time.sleep(LEFT)

    # ---- rank 0

    def _lead(self, stamp: str, body: bytes, merge: Callable[[list[bytes]], bytes]) -> bytes:
        bodies = {0: body}
        for rank, line in self._lines.items():
            theirs, past, bodies[rank] = _read(self._answer(line, stamp))
            if past != self.passed.sum:
                line.send(TELL)
                recent = json.loads(self._answer(line, stamp))
                self._compare_past(rank, theirs, stamp, past, recent)
            elif apart(theirs.encode(), stamp.encode()):
                self._part(rank, theirs, stamp)
        made = merge([bodies[rank] for rank in sorted(bodies)])
        self._lines.say(DONE + made)
        return made

    def _compare_past(self, rank: int, stamp: str, own: str, past: bytes, theirs: Recent) -> None:
        """Find out whether a rank has passed by something else, or by files of other names."""
        mine = self.passed.recent()
        self._compare(rank, theirs, mine)
        alike = [tuple(each) for each in theirs[1]] == mine[1]  # else files have other names
        if not torch_internals.in_backward() and (_count(past) != self.passed.count or alike):
            self._part(rank, "another collective, some time before " + stamp.split(" ", 1)[1], own)

    def _compare(self, rank: int, theirs: Recent, own: Recent) -> None:
        if theirs[0] != own[0]:
            return  # since another meeting
        mine = dict(own[1])
        for number, stamp in theirs[1]:
            if number in mine and apart(stamp.encode(), mine[number].encode()):
                self._part(rank, stamp, mine[number])

    def _part(self, rank: int, theirs: str, own: str) -> NoReturn:
        after = ""
        if theirs[:1].isdigit():
            their_effects, theirs = theirs.split(" ", 1)
            effects = own.split(" ", 1)[0]
            if effects != their_effects:
                after = f" ({their_effects} side effects came before, {effects})"
        text = (
            f"rank {rank} is in «{theirs}» where rank {self.rank} is in "
            f"«{own.split(' ', 1)[1]}»{after}; a decision in the script differs between ranks"
        )
        self._lines.say(PARTED + text.encode())
        raise Disagreement(text)

    def _answer(self, line: Line, stamp: str) -> bytes:
        try:
            return line.read()
        except RankEnded as error:
            self._end(error, stamp)

    # ---- all

    def _end(self, error: RankEnded, stamp: str) -> NoReturn:
        code = self._exit_code(error.rank)
        ended = "has ended" if code is None else f"has ended with exit code {code}"
        where = stamp.split(" ", 1)[1]
        raise RankEnded(
            f"rank {error.rank} {ended}, and this rank waits for it in «{where}»", error.rank
        ) from None

    def _exit_code(self, rank: int) -> int | None:
        """Return 0 once it is known that a rank has ended well, None if that is not said in time.

        Of a rank that failed its launcher tells, and ends this rank meanwhile.
        """
        deadline = monotonic() + LEFT
        self._store.set(f"{WAITS}/{self.rank}", "")
        while monotonic() < deadline:
            if self._store.check([f"ended/{rank}"]) and self._store.get(f"ended/{rank}") == b"0":
                return 0
            time.sleep(TICK)
        return None


def _message(stamp: str, past: bytes, body: bytes) -> bytes:
    return b"%b\0%b\0%b" % (stamp.encode(), past, body)


def _read(message: bytes) -> tuple[str, bytes, bytes]:
    """Split a message: the stamp, a sum over what was passed by, and the body."""
    stamp, past, body = message.split(b"\0", 2)
    return stamp.decode(), past, body


def _count(past: bytes) -> int:
    return int(past.partition(b" ")[0])


def apart(theirs: bytes, own: bytes) -> bool:
    """Return whether two stamps are of different places; lines are compared within one file."""
    if theirs == own:
        return False
    (act, _, place), (own_act, _, own_place) = (
        stamp.rpartition(b" at ") for stamp in (theirs, own)
    )
    if act != own_act or not act:
        return theirs != own
    return place.rpartition(b":")[0] == own_place.rpartition(b":")[0]
