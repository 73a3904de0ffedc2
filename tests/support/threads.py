"""Ranks as threads of one process, for what needs only tensor collectives: 64 in milliseconds.

One rank runs at a time, with a state of torch's generator of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from autoddp.comm.context import Context


class Meeting:
    """Where the ranks put what they have, and find what all have."""

    def __init__(self, size: int) -> None:
        self.size, self.given = size, [None] * size
        self.barrier = threading.Barrier(size, timeout=240)
        self.turn = threading.Lock()

    def meet(self, rank: int, mine: Any) -> list[Any]:
        """What the ranks give, in rank order."""
        self.given[rank] = mine
        state = torch.get_rng_state()
        self.turn.release()
        try:
            self.barrier.wait()
            all_of_them = list(self.given)
            self.barrier.wait()
        finally:
            self.turn.acquire()
            torch.set_rng_state(state)
        return all_of_them

    def tensors(self, rank: int, x: Tensor) -> list[Tensor]:
        """The ranks' tensors, in rank order; those that differ in shape or dtype are an error."""
        alike = self.meet(rank, x.detach().clone(memory_format=torch.contiguous_format))
        assert len({(tuple(y.shape), y.dtype) for y in alike}) == 1, alike
        return alike


class Together:
    """One rank's half of the collectives of `Group`, with its promises."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.meeting, self.rank, self.size = meeting, rank, meeting.size
        self.context = Context()

    def all_gather(self, x: Tensor) -> Tensor:
        """Stacked along a new first dimension."""
        return torch.stack(self.meeting.tensors(self.rank, x))

    def all_reduce(self, x: Tensor) -> Tensor:
        """Summed in place."""
        return x.copy_(sum(self.meeting.tensors(self.rank, x)))  # type: ignore[arg-type]

    def confer(self, what: str, body: bytes) -> bytes:
        """Each rank's JSON text, in one JSON list."""
        return b"[" + b",".join(self.meeting.meet(self.rank, body)) + b"]"


def run_threads(fn: Callable[..., Any], size: int, *args: Any) -> list[Any]:
    """What `fn(group, *args)` returns on each rank, in order; the first error is the failure."""
    meeting, answers, errors = Meeting(size), [None] * size, []

    def be(rank: int) -> None:
        try:
            with meeting.turn:
                answers[rank] = fn(Together(meeting, rank), *args)
        except threading.BrokenBarrierError:
            pass  # another rank's error, or a hang, which the count of answers shows
        except BaseException as error:
            errors.append(error)
            meeting.barrier.abort()

    threads = [threading.Thread(target=be, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    assert not meeting.barrier.broken, "some ranks wait for what others do not do"
    return answers
