"""The check of collectives: rank 0 compares what ranks enter, and does small collectives itself.

A collective that two ranks enter at different places hangs, crashes in the backend, or, where
shapes happen to agree, returns a sum of what does not belong together. So each rank stamps what it
enters, see `InOrder`. Rank 0 compares the stamps, and nobody goes on before it has. Where an
accelerator waits, not the script, and in a backward, nobody is waited for, and nothing is said
either: how many such stamps there were, and a sum over them, ride on the next meeting, and the
threads that watch tell the newest ones.

A small tensor travels with its stamp, is reduced or gathered on rank 0 and comes back: one message
each way, which is faster than a ring of TCP connections. A large tensor goes by the backend once
the stamps agree. Ranks that share memory compare the stamps there, each for itself, and reduce the
small tensors, too; where these are not all of one place, they all go on as if there were no such
memory.
"""

from __future__ import annotations

import json
import threading
import zlib
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch import Tensor

from autoddp import torch_internals
from autoddp.comm.in_order import SAID, InOrder, apart, split, without_file
from autoddp.errors import RankEnded
from autoddp.report import places, users_frame

if TYPE_CHECKING:
    from torch.distributed import Store

    from autoddp.comm.line import Lines
    from autoddp.comm.node_memory import NodeMemory

Recent = list[tuple[int, str]]  # stamps, with their numbers
KEPT = 128  # stamps that are known by their words
MOST = 4096  # kinds of collective whose words are kept
TELL = b"~"  # the first byte of a question for the newest stamps


class CollectiveCheck(InOrder):
    """One rank's end of the check: rank 0 compares stamps, the others send theirs."""

    def __init__(self, rank: int, lines: Lines, store: Store) -> None:
        super().__init__(rank, lines, store)
        self.asides[TELL] = self._tell
        self._words: dict[Any, str] = {}
        self.memory: NodeMemory | None = None  # of all ranks, if they are on one node
        self._count = self._total = 0  # of all stamps, and a sum over them
        self._stamps: deque[tuple[int, str]] = deque(maxlen=KEPT)
        self._past = b""  # count and sum, before the latest meeting
        self._newest = ""  # of those that were passed by since the last meeting
        self._heard: dict[int, Recent] = {}  # on rank 0: what the others' threads have told
        self._lock = threading.Lock()  # two threads of the script's may read a batch at once

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
        if self.lines:
            self._newest = stamp
            self._note(stamp)

    def meet(self, stamp: str, body: bytes, merge: Callable[[list[bytes]], bytes]) -> bytes:
        """Return what `merge` makes of all ranks' bodies on rank 0, once all are at this stamp.

        Raises:
            Disagreement: Two ranks are at different places; raised on all that wait here.
            RankEnded: A rank has ended.
        """
        with self._lock:
            place, said = stamp.encode(), b"%d %d\0%b" % (self._count, self._total, body)
            self._past = said.partition(b"\0")[0]
            self._newest = ""
            self._note(stamp)
            bodies = self._by_memory(place, said)
            return merge(bodies) if bodies is not None else self._by_lines(place, said, merge)

    def _note(self, stamp: str) -> None:
        self._stamps.append((self._count, stamp))
        self._total = zlib.crc32(without_file(stamp.encode()), self._total)
        self._count += 1

    def _by_lines(self, place: bytes, said: bytes, merge: Callable[[list[bytes]], bytes]) -> bytes:
        if self.rank:
            try:
                return self.hear(place, said)[0]
            except RankEnded as error:
                self.end(error, place)
        made = merge([_body(each) for each in (said, *self.gather(place).values())])
        self.say(SAID, place, made)
        return made

    def _by_memory(self, place: bytes, said: bytes) -> list[bytes] | None:
        """Return all ranks' bodies, if they share memory, and all are at one place.

        Else, on all ranks, None: rank 0 finds out who is where, and says so.
        """
        if self.memory is None:
            return None
        try:
            messages = self.memory.exchange(b"@%b\0%b" % (place, said))
        except dist.DistNetworkError:
            return None
        found = [split(message) for message in messages or ()]
        if any(apart(theirs, found[0][0]) for theirs, _ in found):
            return None
        if len({each.partition(b"\0")[0] for _, each in found}) != 1:
            return None
        return [_body(each) for _, each in found]

    # ---- what was passed by

    def newest(self) -> str:
        """Return the newest stamp in words; if there is none, words for a device that computes."""
        return self._newest.partition(" ")[2] or "what its device computes"

    def recent(self) -> Recent:
        """Return the newest stamps; of a meeting in progress it is the last."""
        return [*self._stamps]

    def _tell(self, _: bytes) -> None:
        self.lines.say(json.dumps(self.recent()).encode())

    # ---- rank 0

    def hear_recent(self, rank: int, recent: Recent) -> None:
        """Keep what the thread that watches a rank has told of it."""
        self._heard[rank] = recent

    def look(self) -> None:
        """Compare, from another thread, what ranks have entered so far.

        Raises:
            Disagreement: A rank is somewhere else than this one.
        """
        for rank, recent in self._heard.items():
            self._compare_recent(rank, recent)

    def compare(self, rank: int, theirs: bytes, place: bytes, data: bytes) -> None:
        """See that a rank is at this place, and has passed by the same collectives before.

        Raises:
            Disagreement: It is not, or has not; all ranks are told.
        """
        if data.partition(b"\0")[0] != self._past:
            self.lines[rank].send(TELL)
            self._compare_recent(rank, json.loads(self.lines[rank].read()))
            if not torch_internals.in_backward():  # where other threads go on
                calls, _, where = theirs.partition(b" ")
                self.part(rank, calls + b" another collective, some time before " + where, place)
        super().compare(rank, theirs, place, data)

    def _compare_recent(self, rank: int, theirs: Recent) -> None:
        mine = dict(self.recent())
        for number, stamp in theirs:
            if number in mine and apart(stamp.encode(), mine[number].encode()):
                self.part(rank, stamp.encode(), mine[number].encode())


def _body(said: bytes) -> bytes:
    return said.partition(b"\0")[2]
