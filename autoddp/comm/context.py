"""Whose code runs now, as everything must know that acts differently for the script's own code.

The script's thread runs the script's own code unless it is inside one or more of the kinds of
`Code`, which nest. Other threads and forked children are told apart by thread and process.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from enum import IntEnum, auto
from os import getpid  # a script's is patched: it costs more, and answers as rank 0
from threading import get_ident


class Code(IntEnum):
    """A kind of code that is not the script's own, as one process would run it.

    Attributes:
        INTERNAL: Autoddp's; its effects pass through, as if autoddp were not there.
        FETCH: A data set's, for rows or batches that other ranks do not fetch; its effects pass
            through too, but it finds files where this rank has put them.
        PLAIN: Code in which no batch is looked for: a data set's fetch, a backward.
        FUNCTION: Code below torch's functions that computes on whole batches: an autograd function
            of the script, or what runs under its hooks of saved tensors.
        TALKING: Code that sends to other ranks or receives from them.
        ACTING: On rank 0, what the other ranks wait for.
    """

    INTERNAL = 0
    FETCH = auto()
    PLAIN = auto()
    FUNCTION = auto()
    TALKING = auto()
    ACTING = auto()


class Within:
    """A context manager that counts how deep the script is in a kind of code.

    A step enters it several times: one made of a generator would cost three times as much.
    """

    __slots__ = ("_code", "_depth")

    def __init__(self, depth: list[int], code: Code) -> None:
        self._depth, self._code = depth, code

    def __enter__(self) -> None:
        self._depth[self._code] += 1

    def __exit__(self, *_: object) -> None:
        self._depth[self._code] -= 1


class Context:
    """Whose code runs now, on one rank.

    Attributes:
        depth: How often the script's thread has entered each kind of code and not left it yet.
        ending: Whether the script has ended: what its objects still do is each rank's own.
        over: Whether the job has ended: ranks agree on nothing any more.
        collecting: Whether Python's collector of cycles runs on the script's thread. It runs at
            different moments on each rank: what a `__del__` does has no place in their order.
    """

    def __init__(self) -> None:
        self.process, self.thread = getpid(), get_ident()
        self.first_thread = self.thread  # also in a fork by another thread, whose `thread` that is
        self.depth = [0] * len(Code)
        self.ending = self.over = self.collecting = False
        self._child = 0  # this process, if it was forked from the rank
        self._elsewhere = threading.local()  # whether another thread runs autoddp's code

    # ---- where

    def is_rank(self) -> bool:
        """Return whether this process is the rank itself, not one forked from it."""
        return getpid() == self.process

    def in_thread(self) -> bool:
        """Return whether this is another thread of Python's than the script's.

        Ranks' threads are not in step: what one computes, each rank computes whole, by itself. A
        thread of torch's engine, which a backward of the script waits for, is not one of Python's.
        """
        here = get_ident()
        # not `current_thread()`, which makes an object for a thread that is not one of Python's
        return here != self.thread and here in threading._active  # type: ignore[attr-defined]

    def is_script(self) -> bool:
        """Return whether this is the rank itself, on a thread that all ranks follow."""
        return self.is_rank() and not self.in_thread()

    def in_job(self) -> bool:
        """Return whether this process is the rank itself, and the job has not ended."""
        return not self.over and getpid() == self.process

    def on_script_thread(self) -> bool:
        """Return whether this is the thread that runs the script."""
        return get_ident() == self.thread

    def in_fork(self) -> bool:
        """Return whether this process was forked from the rank; its thread is the script's then."""
        here = getpid()
        if here == self.process:
            return False
        if here != self._child:  # forked while the script was anywhere
            self._child, self.thread = here, get_ident()
            self.depth = [0] * len(Code)
        return not self.over

    # ---- what

    def within(self, code: Code) -> Within:
        """Run code of this kind inside, on the script's thread."""
        return Within(self.depth, code)

    @contextmanager
    def internal(self) -> Iterator[None]:
        """Run autoddp's own code inside, on any thread."""
        if get_ident() == self.thread:
            with Within(self.depth, Code.INTERNAL):
                yield
            return
        # what the script's thread does meanwhile is the script's
        apart = self._elsewhere
        before, apart.internal = self.is_internal_elsewhere(), True
        try:
            yield
        finally:
            apart.internal = before

    @contextmanager
    def script(self) -> Iterator[None]:
        """Run the script's own code inside, wherever this is: a handler of a signal."""
        before, self.depth = self.depth, [0] * len(Code)
        try:
            yield
        finally:
            self.depth = before

    def is_internal_elsewhere(self) -> bool:
        """Return whether this is another thread than the script's, in autoddp's own code."""
        return get_ident() != self.thread and getattr(self._elsewhere, "internal", False)

    def is_plain(self) -> bool:
        """Return whether a module's call is as if autoddp were not there."""
        return bool(self.depth[Code.PLAIN])

    def passes_through(self) -> bool:
        """Return whether effects are as if autoddp were not there: autoddp's, or a data set's."""
        return bool(self.depth[Code.INTERNAL] or self.depth[Code.FETCH])

    def watch_collector(self, undo: ExitStack) -> None:
        """Watch Python's collector from now on; a second call does nothing."""
        if self._note not in gc.callbacks:
            gc.callbacks.append(self._note)
            undo.callback(gc.callbacks.remove, self._note)

    def _note(self, phase: str, info: Mapping[str, int]) -> None:
        if get_ident() == self.thread:
            self.collecting = phase == "start"
