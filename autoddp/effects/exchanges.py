"""Queues, pipes, locks and shared memory by which the script talks to its processes.

Once rank 0 has started a process, what the script gets by one of them is rank 0's, and what it
sends goes to rank 0's processes only.
"""

from __future__ import annotations

from multiprocessing import managers
from typing import Any

import torch

from autoddp.effects.processes import THROUGH, Processes
from autoddp.effects.shared_memory import of_buffer, of_segment, of_tensor
from autoddp.effects.who_acts import Mode
from autoddp.patching import Call, patch
from autoddp.report import users_line

QUEUE = (
    "items come from each rank's own workers, in an order that may differ between ranks; "
    "Pool.map and executors return results in one order"
)
WHY = "what the script gets from its processes, and sends to them, is rank 0's"
MEMORY = "what rank 0's processes write to shared memory, all ranks read"
GETS = ("get", "get_nowait")
LOCKS, QUEUES = "multiprocessing.synchronize:", "multiprocessing.queues:"
ENDS, PROXY = "multiprocessing.connection:_ConnectionBase.", "multiprocessing.managers:BaseProxy."
ALL_THROUGH = (*THROUGH, managers.__file__)


class Exchanges(Processes):
    """The part of `Children` for what the script shares with its processes."""

    def part(self) -> None:
        """Drop what other ranks have put into queues, since no process of theirs gets it."""
        for queue in [*self.numbers] if self.rank else ():
            if hasattr(queue, "cancel_join_thread"):
                queue.cancel_join_thread()
                queue._jointhread = None

    @patch(
        *(f"{QUEUES}{kind}.__init__" for kind in ("Queue", "JoinableQueue", "SimpleQueue")),
        *(f"{LOCKS}{kind}.__init__" for kind in ("SemLock", "Condition", "Event", "Barrier")),
        f"{PROXY}__init__",
        why="all ranks know the queues and locks that the script shares with its processes",
    )
    def make(self, call: Call) -> Any:
        """Give a number to a queue, a lock or the like that the script makes."""
        if self.effects.mode() is not Mode.SYNCED or self.by_library(ALL_THROUGH):
            return call.plain()
        with self.context.internal():
            call.plain()
        self.number(call.instance)
        for name in ("acquire", "release") if call.target.startswith(f"{LOCKS}SemLock") else ():
            self._ask_by(call.instance, name)  # a C function of this object
        return None

    def _ask_by(self, lock: Any, name: str) -> None:
        plain = getattr(lock, name)
        setattr(lock, name, lambda *args, **kw: self.exchange(Call(plain, args, kw, lock)))

    @patch("multiprocessing.connection:Pipe", why="all ranks know the pipes of the script")
    def pipe(self, call: Call) -> Any:
        """Give numbers to the ends of a pipe that the script makes."""
        ends = call.plain()
        for end in ends if self.together() else ():
            self.number(end)
        return ends

    @patch(
        *(f"{QUEUES}Queue.{name}" for name in (*GETS, "put", "put_nowait")),
        *(f"{QUEUES}Queue.{name}" for name in ("empty", "full", "qsize")),
        *(f"{QUEUES}JoinableQueue.{name}" for name in ("put", "task_done", "join")),
        *(f"{QUEUES}SimpleQueue.{name}" for name in ("get", "put", "empty")),
        *(f"{ENDS}{name}" for name in ("recv", "recv_bytes", "poll", "send", "send_bytes")),
        *(f"{LOCKS}{kind}.__enter__" for kind in ("SemLock", "Condition")),
        *(f"{LOCKS}{kind}.__exit__" for kind in ("SemLock", "Condition")),
        *(f"{LOCKS}Condition.{name}" for name in ("wait", "wait_for", "notify", "notify_all")),
        *(f"{LOCKS}Event.{name}" for name in ("is_set", "set", "clear", "wait")),
        *(f"threading:Barrier.{name}" for name in ("wait", "reset", "abort")),
        f"{PROXY}_callmethod",
        why=WHY,
    )
    def exchange(self, call: Call) -> Any:
        """Call a method of an object that rank 0 shares with its processes, on rank 0."""
        thing, name = call.instance, call.wrapped.__name__
        if not self._shared(thing):
            return call.plain()
        if self.alone:
            what = f"{type(thing).__name__}.{name}"
            value = self.rank0s(what, thing, lambda: Proxied.of(call.plain()))
            if isinstance(value, Proxied):
                self.number(value := value.proxy)
            return value
        if self.effects.mode() is Mode.SYNCED and name in GETS:
            what = f"{type(thing).__module__}.{type(thing).__name__}.{name}: {QUEUE}"
            self.run.report.doubt("children", users_line(), what)
        with self.context.internal():
            return call.plain()

    @patch(f"{ENDS}recv_bytes_into", why=WHY)
    def receive_into(self, call: Call) -> Any:
        """Receive bytes on rank 0 into every rank's buffer."""
        if not (self._shared(call.instance) and self.alone):
            return call.plain()
        buffer, offset = call.named["buf"], call.named.get("offset", 0)

        def receive() -> bytes:
            size = call.plain()
            return bytes(memoryview(buffer).cast("B")[offset : offset + size])

        data = self.rank0s("Connection.recv_bytes_into", call.instance, receive)
        memoryview(buffer).cast("B")[offset : offset + len(data)] = data
        return len(data)

    def _shared(self, thing: Any) -> bool:
        """Return whether the script calls, here, a method of what it shares with processes."""
        if thing not in self.numbers or not self.context.is_rank():
            return False
        return not self.by_library(ALL_THROUGH)

    @patch("multiprocessing.connection:wait", why=WHY)
    def wait(self, call: Call) -> Any:
        """Wait, on rank 0, for one of several connections or processes."""
        if not (self.alone and self.together()):
            return call.plain()
        things = [*call.named["object_list"]]

        def ready() -> list[int]:
            return [things.index(thing) for thing in call.changed(object_list=things)]

        return [things[at] for at in self.effects.ask_rank0("connection.wait", ready)]

    # ---- memory

    @patch("multiprocessing.heap:BufferWrapper.__init__", "torch:Tensor.share_memory_", why=MEMORY)
    def share(self, call: Call) -> Any:
        """Follow the memory of a `Value`, an `Array`, or a tensor."""
        made, x = call.plain(), call.instance
        if self.effects.mode() is Mode.SYNCED and not self.by_library():
            if not isinstance(x, torch.Tensor):
                self.memory.add(x, of_buffer)
            elif x.device.type == "cpu" and x.layout is torch.strided:
                self.memory.add(x, of_tensor)
        return made

    @patch("multiprocessing.shared_memory:SharedMemory.__init__", optional=True, why=MEMORY)
    def segment(self, call: Call) -> Any:
        """Make a segment on each rank, or attach all ranks of a node to one that has a name."""
        if not self.together():
            return call.plain()
        self.effects.do_on_rank0("SharedMemory", call.plain)
        made = call.named.get("create")
        if self.rank:
            call.changed(name=None) if made else call.plain()
        if made:
            self.number(call.instance)
            self.memory.add(call.instance, of_segment)
        return None

    @patch("multiprocessing.shared_memory:SharedMemory.unlink", optional=True, why=MEMORY)
    def unlink(self, call: Call) -> Any:
        """Remove a segment: each rank its own, rank 0 one that a process of it has made."""
        if call.instance in self.numbers or not self.together():
            return call.plain()
        return self.effects.do_on_rank0("SharedMemory.unlink", call.plain)


class Proxied:
    """A proxy of a manager as a result, which on other ranks has no connection, and needs none."""

    def __init__(self, proxy: Any) -> None:
        self.proxy = proxy

    @classmethod
    def of(cls, result: Any) -> Any:
        """Wrap a result if it is a proxy."""
        return cls(result) if isinstance(result, managers.BaseProxy) else result

    @classmethod
    def elsewhere(cls, kind: Any) -> Proxied:
        """Make the one of another rank."""
        return cls(kind.__new__(kind))

    def __reduce__(self) -> tuple[Any, ...]:
        return self.elsewhere, (type(self.proxy),)
