"""The ranks of a job: collectives on tensors, and effects that rank 0 has once, for all.

Tensors travel by the process group. Everything else (outcomes, clocks, names) goes by the channel:
see `Rpc`.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store, TCPStore, init_process_group

from autoddp import torch_internals
from autoddp.comm import accelerator
from autoddp.comm.accelerator import CPU
from autoddp.comm.collective_check import Together
from autoddp.comm.control_plane import Channel
from autoddp.comm.node_memory import NodeMemory, shared
from autoddp.comm.position import WAITING
from autoddp.comm.rpc import Rpc
from autoddp.comm.tensor_bytes import bytes_of, reducing, write
from autoddp.comm.timeout import Timeout, silent
from autoddp.comm.world import World
from autoddp.own_operations import unseen
from autoddp.torch_internals import plain_tensors

TIMEOUT = timedelta(minutes=30)
SMALL = 1 << 14  # bytes of a tensor that travels with its stamp
Connect = Callable[[Store, int, int], dist.ProcessGroup]
Choose = Callable[[Channel], tuple[str, torch.device | None]]
SUM, MIN, MAX = dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX


class Group(Rpc):
    """The ranks of a job: a process group that is nobody's default, and a store.

    The script's own `torch.distributed.is_initialized()` stays false: it sees one process.
    """

    def __init__(
        self,
        world: World,
        pg: dist.ProcessGroup,
        store: Store,
        channel: Channel,
        native: bool = False,
        connect: Connect | None = None,
    ) -> None:
        super().__init__(world.rank, world.world_size, store, channel)
        self.world, self.pg = world, pg
        self._connect, self._parts = connect, list[dist.ProcessGroup]()
        self._connections = 0
        # an accelerator's own backend, by which the accelerator waits, not the script
        self.native = native
        self.kind = ""  # torch's word for the accelerators of all ranks
        self.placed: list[int] | None = None  # the node of each rank, once `nodes` has found it
        self.gathered = 0  # bytes that came from other ranks
        # what ranks do together once the script has ended well
        self.at_end: list[Callable[[], None]] = []
        # where all ranks are on one node: for collectives, and for the gradients of a backward
        self.memory: NodeMemory | None = None
        self.gradient_memory: NodeMemory | None = None
        if self.size == world.local_world_size > 1 and not native:
            lines = channel.calls, channel.collectives
            self.memory = self.collective_check.memory = shared(self.rank, self.size, *lines)
            self.gradient_memory = shared(self.rank, self.size, *lines)

    @classmethod
    def join(
        cls,
        world: World,
        attempt: str,
        choose: Choose,
        say: Callable[[str], None],
    ) -> Group:
        """Join the other ranks at the store of this start, or `attempt`, of the job; see `over`.

        Several jobs of these ranks, one after the other, may use one store of their launcher's.
        """
        hosts = world.rank == 0 and not world.agent_store
        where = world.master_addr, world.master_port, world.world_size
        tcp = TCPStore(*where, hosts, TIMEOUT, wait_for_workers=False)
        job = tcp.add(f"autoddp/{attempt}/jobs/{world.rank}", 1)
        store = torch_internals.prefixed(f"autoddp/{attempt}/{job}", tcp)
        return cls.over(world, store, choose, say)

    @classmethod
    def over(
        cls,
        world: World,
        store: Store,
        choose: Choose = lambda channel: ("gloo", None),
        say: Callable[[str], None] = silent,
    ) -> Group:
        """Join the other ranks over a store of all of them.

        Args:
            world: The place of this rank among the ranks.
            store: The store.
            choose: Returns, once all ranks have come, the backend for the accelerator's tensors,
                and this rank's device if each rank has one.
            say: Tells the user of a long wait.
        """
        apart = torch_internals.prefixed("effects", store)
        channel = Channel.between(world, apart, Timeout(TIMEOUT.total_seconds(), say))
        backend, device = choose(channel)
        native = backend != "gloo"
        by = f"cpu:gloo,{accelerator.kind()}:{backend}" if native else backend
        connect = partial(_connect, by, device)
        pg = connect(PrefixStore("pg", store), world.rank, world.world_size)
        return cls(world, pg, apart, channel, native, connect)

    def connect(self, ranks: list[int]) -> dist.ProcessGroup:
        """Return a process group of these ranks, which all call this at the same place."""
        assert self._connect is not None
        self._connections += 1  # a second group of the same ranks meets at other keys
        name = f"ranks {ranks} {self._connections}"
        store = torch_internals.prefixed(name, self.store)
        made = self._connect(store, ranks.index(self.rank), len(ranks))
        self._parts.append(made)
        return made

    def disconnect(self) -> None:
        """Close the process groups of some ranks."""
        while self._parts:
            dist.destroy_process_group(self._parts.pop())

    def leave(self) -> None:
        """Close the lines to the other ranks: to those that still wait, this one has ended."""
        self.channel.close()

    # ---- tensors

    def start_all_reduce(self, x: Tensor, op: Any = SUM) -> Any:
        """Start to reduce `x` in place over all ranks; `wait()` on the result before using `x`."""
        if x.is_meta:  # there are no numbers, and torch would draw from Python's `random`
            done: Any = torch.futures.Future()
            done.set_result(x)
            return done
        options = dist.AllreduceOptions()
        options.reduceOp = op
        return self.pg.allreduce([x], options)

    def all_reduce(self, x: Tensor, op: Any = SUM) -> Tensor:
        """Reduce `x` in place over all ranks, wait, and return it."""
        target = torch.view_as_real(x) if x.is_complex() else x
        with self.together("all-reduce", x) as place, plain_tensors():
            if _is_small(x):
                write(target, place.exchange(bytes_of(target), reducing(target.dtype, op)))
                return x
            place.agree()
            if self.memory and target.is_cpu and target.is_contiguous() and op == SUM:
                self.memory.all_reduce(target)
            else:
                self.start_all_reduce(target, op).wait()
        return x

    def all_gather(self, x: Tensor, what: str = "all-gather") -> Tensor:
        """Gather the ranks' tensors, of one shape, stacked along a new first dimension.

        They travel as bytes, since backends know some dtypes only. `what`, which ranks compare,
        describes them.
        """
        out = x.new_empty((self.size, *x.shape))
        if not x.numel():
            return out
        self.gathered += out.nbytes - x.nbytes
        with self.together(what, x) as place, plain_tensors():
            if _is_small(x):
                write(out, place.exchange(bytes_of(x), b"".join))
                return out
            place.agree()
            # not view(-1): one element that is called contiguous may have any stride
            flat = x.contiguous().as_strided((x.numel(),), (1,)).view(torch.uint8)
            whole = out.view(-1).view(torch.uint8)
            if self.memory and x.is_cpu:
                self.memory.all_gather(whole.view(self.size, -1), flat)
            elif not x.is_meta:
                self.pg._allgather_base(whole, flat).wait()
        return out

    def reduce_scatter(self, x: Tensor) -> Tensor:
        """Average `x`, flat, over all ranks, and return this rank's of as many equal parts."""
        step = x.numel() // self.size
        part = slice(self.rank * step, (self.rank + 1) * step)
        with self.together("reduce-scatter", x) as place, plain_tensors():
            place.agree()
            if self.memory and x.is_cpu:
                return self.memory.reduce_scatter(x)
            if not self.native or x.is_cpu or x.is_meta:  # gloo of old versions has none
                self.start_all_reduce(x).wait()
                return x[part].div_(self.size).clone()
            out = x.new_empty(step)
            self.pg._reduce_scatter_base(out, x, dist.ReduceScatterOptions()).wait()
            return out.div_(self.size)

    def together(self, what: str, x: Tensor, kind: str = WAITING) -> Together:
        """Return a place of the program at which all ranks wait for each other.

        They may act on a signal at its end, see `SignalSync`: not inside a backward, which is one
        point as a whole.
        """
        return Together(self, what, x, kind)

    def confer(self, what: str, body: bytes) -> bytes:
        """Gather each rank's JSON text into one JSON list; ranks may be at different lines."""
        with self.together(what, torch.empty(0, device=CPU)) as place:
            place.stamp = f"0 {what}"
            return place.exchange(body, lambda bodies: b"[" + b",".join(bodies) + b"]")

    def conclude(self) -> None:
        """Do what ranks do together once the script has ended well, while all are still there."""
        for act in self.at_end:
            act()
        if self.native:  # a kernel of another rank's may still read what this one holds
            accelerator.synchronize()
            self.barrier()

    @unseen
    def agree(self, yes: bool) -> bool:
        """Return whether all ranks say yes."""
        return bool(self.all_reduce(torch.tensor([int(yes)], device=CPU), MIN).item())

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.agree(True)

    # ---- nodes

    def nodes(self) -> list[int]:
        """Return the node of each rank, rank 0's is 0; all ranks call this."""
        if self.placed is None:
            world = self.world
            mine = f"{world.node_rank} {socket.gethostname()}"  # not every launcher gives node_rank
            names = []
            if world.local_world_size < world.world_size:
                names = json.loads(self.confer("the nodes", json.dumps(mine).encode()))
            numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
            self.placed = [numbers[name] for name in names] or [0] * world.world_size
        return self.placed

    def leaders(self) -> list[int]:
        """Return the first rank of each node; all ranks call this."""
        placed = self.nodes()
        return [placed.index(node) for node in range(max(placed) + 1)]


def _connect(
    backend: str, device: torch.device | None, store: Store, rank: int, size: int
) -> dist.ProcessGroup:
    """Return a process group that is nobody's default."""
    with torch_internals.quiet_gloo():
        init_process_group(
            backend,
            store=store,
            rank=rank,
            world_size=size,
            timeout=TIMEOUT,
            device_id=torch_internals.bound(device),
        )
    pg = dist.group.WORLD
    assert pg is not None
    dist.group.WORLD = None  # the setter is on the metaclass
    return pg


def _is_small(x: Tensor) -> bool:
    return x.device.type == "cpu" and x.numel() * x.element_size() <= SMALL
