"""Where ranks meet in a collective: said to rank 0, held against its own, and, if it is small, done there.

All ranks run one program, so the n-th collective of a rank is the n-th of rank 0: of the same kind and
shape, after as many effects, and at the same line of a file that both know by one name; what a library
writes for itself to run it may have another name on each rank. A collective that two ranks enter at
different places hangs, crashes in the backend, or, where shapes happen to agree, returns a sum of what does
not belong together. So each rank stamps what it enters. Rank 0 compares the stamps, and nobody goes on
before it has; a backward alone is not waited for, its stamp is compared at the next meeting.

What is small travels with its stamp, is put together on rank 0 and comes back: one message each way, on a
node by unix sockets, which is faster than a ring of TCP connections. What is large goes by the backend then.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from autoddp.errors import Disagreement, RankEnded
from autoddp.report import users_frame

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from autoddp.outside.channel import Line

MOST = 4096  # kinds of collective whose words are kept
DONE, PARTED = b"=", b"!"  # the first byte of what rank 0 says
WAITS = "waits"  # in the store: a rank does nothing more but to wait for its end
LEFT = 10.0  # seconds that a launcher has to end this rank once another one has failed
TICK = 0.02


class Exchange:
    """One rank's end of it."""

    def __init__(self, rank: int, lines: dict[int, Line], store: Store) -> None:
        self.rank, self._lines, self._store = rank, lines, store
        self._words: dict[Any, str] = {}
        self._own: deque[bytes] = deque()  # rank 0's stamps, from the oldest that has not been compared
        self._first = 0  # the number of the first of them
        self._compared = dict.fromkeys(lines, 0)
        self._lock = threading.Lock()  # of rank 0's lines: a thread looks, too, see `watching`

    def words(self, what: str, x: Tensor) -> str:
        """What a rank is about to do, at the user's line."""
        frame = users_frame(3)
        key = (what, x.dtype, x.shape, frame and (frame.f_code, frame.f_lineno))
        words = self._words.get(key)
        if words is None:
            if len(self._words) == MOST:
                self._words.clear()
            where = f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}" if frame else "?"
            dtype = str(x.dtype).removeprefix("torch.")
            words = self._words[key] = f"{what} of {dtype}{list(x.shape)} at {where}"
        return words

    def pass_by(self, stamp: str) -> None:
        """Say where this rank is; nobody waits."""
        if self.rank:
            self._lines[0].send(stamp.encode() + b"\0")
        elif self._lines:
            with self._lock:
                self._own.append(stamp.encode())

    def meet(self, stamp: str, body: bytes, merge: Callable[[list[bytes]], bytes]) -> bytes:
        """What rank 0 makes of all ranks' bodies, once all are at this stamp.

        Raises:
            Disagreement: Two ranks are at different places; on all that wait here.
            RankEnded: One has ended.
        """
        if self.rank:
            self._lines[0].send(b"%b\0%b" % (stamp.encode(), body))
            answer = self._read(self._lines[0], stamp)
            if answer[:1] == PARTED:
                raise Disagreement(answer[1:].decode())
            return answer[1:]
        if not self._lines:
            return merge([body])
        with self._lock:
            self._own.append(stamp.encode())
            bodies = [body, *(self._from(rank, stamp) for rank in self._lines)]
            self._own.clear()
            self._first = next(iter(self._compared.values()))
        made = merge(bodies)
        self._say(DONE + made)
        return made

    def look(self) -> None:
        """Rank 0, from another thread: whether a rank has said that it is somewhere else.

        Raises:
            Disagreement: So it is.
        """
        if self.rank or not self._lock.acquire(blocking=False):
            return  # the script's own thread looks
        try:
            for rank, line in self._lines.items():
                said = line.peek()
                number = self._compared[rank] - self._first
                if said is not None and number < len(self._own):
                    self._hold(rank, said.partition(b"\0")[0], self._own[number])
        finally:
            self._lock.release()

    def wait_for_the_end(self) -> None:
        """A backend has lost a rank, whose launcher says so and ends this one: not the first that failed."""
        self._store.set(f"{WAITS}/{self.rank}", "")
        time.sleep(LEFT)

    # ---- rank 0

    def _from(self, rank: int, stamp: str) -> bytes:
        """The body that a rank sends along with the newest stamp; older ones are compared on the way."""
        body = b""
        for number in range(self._compared[rank] - self._first, len(self._own)):
            said, _, body = self._read(self._lines[rank], stamp).partition(b"\0")
            self._hold(rank, said, self._own[number])
            self._compared[rank] += 1
        return body

    def _hold(self, rank: int, theirs: bytes, own: bytes) -> None:
        if theirs == own or not apart(theirs, own):
            return
        (their_effects, their_words), (effects, words) = (s.decode().split(" ", 1) for s in (theirs, own))
        after = "" if effects == their_effects else f" ({their_effects} side effects came before, {effects})"
        text = (
            f"rank {rank} is in «{their_words}» where rank 0 is in «{words}»{after}; "
            "a decision in the script differs between ranks"
        )
        self._say(PARTED + text.encode())
        raise Disagreement(text)

    def _say(self, message: bytes) -> None:
        for line in self._lines.values():
            line.send(message)

    # ---- all

    def _read(self, line: Line, stamp: str) -> bytes:
        try:
            return line.read()
        except RankEnded:
            code = self._exit_code(line.peer)
            ended = "has ended" if code is None else f"has ended with exit code {code}"
            where = stamp.split(" ", 1)[1]
            raise RankEnded(f"rank {line.peer} {ended}, and this rank waits for it in «{where}»") from None

    def _exit_code(self, rank: int) -> int | None:
        """Of a rank that has ended well; of another one a launcher tells, and ends this rank meanwhile."""
        deadline = time.monotonic() + LEFT
        self._store.set(f"{WAITS}/{self.rank}", "")
        while time.monotonic() < deadline:
            if self._store.check([f"ended/{rank}"]) and self._store.get(f"ended/{rank}") == b"0":
                return 0
            time.sleep(TICK)
        return None


def apart(theirs: bytes, own: bytes) -> bool:
    """Whether two stamps are not of one place: files are only compared by lines, if they are one."""
    (act, _, place), (own_act, _, own_place) = (stamp.rpartition(b" at ") for stamp in (theirs, own))
    if act != own_act or not act:
        return theirs != own
    return place.rpartition(b":")[0] == own_place.rpartition(b":")[0]


# ---- tensors as bytes


def bytes_of(x: Tensor) -> bytes:
    """Its elements, in their order."""
    flat = x.detach().resolve_conj().resolve_neg().contiguous()
    if flat._is_zerotensor():
        flat = flat.clone()  # zeros of a gradient that have no memory
    return ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size())


def write(x: Tensor, data: bytes) -> None:
    """The inverse, in place; as a backend writes, it counts as no change of the script's."""
    if x.is_contiguous():
        ctypes.memmove(x.data_ptr(), data, len(data))
    else:
        x.detach().copy_(torch.frombuffer(bytearray(data), dtype=x.dtype).view(x.shape))


def reducing(dtype: torch.dtype, op: Any) -> Callable[[list[bytes]], bytes]:
    """Makes one of all ranks' elements, in the order of the ranks."""

    def merge(bodies: list[bytes]) -> bytes:
        if not any(bodies):
            return b""  # no elements, which frombuffer refuses
        rows = torch.frombuffer(bytearray(b"".join(bodies)), dtype=dtype).view(len(bodies), -1)
        if op == dist.ReduceOp.SUM:
            return bytes_of(rows.sum(0, dtype=dtype))
        return bytes_of(rows.amin(0) if op == dist.ReduceOp.MIN else rows.amax(0))

    return merge
