"""The ranks of a job: collectives on tensors, and effects that rank 0 has once, for all.

Tensors travel by the process group. Everything else (outcomes, clocks, names) goes through the
store as JSON, so that a rank that skips a call cannot deadlock the others, and nothing that a
stranger sends is ever executed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from autoddp.environment import World
from autoddp.errors import Disagreement
from autoddp.outcome import Outcome

TIMEOUT = timedelta(minutes=30)
KEPT = 256  # effects that stay in the store for ranks that come later

SUM, MIN, MAX = dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX


class Group:
    """A process group that is nobody's default, and a store.

    The script's own `torch.distributed.is_initialized()` stays false: it sees one process.
    """

    def __init__(self, world: World, pg: dist.ProcessGroup, store: dist.Store) -> None:
        self.world, self.pg, self.store = world, pg, store
        self.rank, self.size = world.rank, world.world_size
        self._effects = 0

    @classmethod
    def join(cls, world: World, backend: str = "gloo", attempt: str = "0") -> Group:
        """Meet the other ranks; `backend` is gloo, or nccl (then gloo carries what lies on CPUs)."""
        master = world.rank == 0 and not world.agent_store
        tcp = dist.TCPStore(
            world.master_addr, world.master_port, world.world_size, master, TIMEOUT, wait_for_workers=False
        )
        return cls.over(world, dist.PrefixStore(f"autoddp/{attempt}", tcp), backend)

    @classmethod
    def over(cls, world: World, store: dist.Store, backend: str = "gloo") -> Group:
        """Meet over a store that is already there."""
        dist.init_process_group(
            "gloo" if backend == "gloo" else f"cpu:gloo,cuda:{backend}",
            store=dist.PrefixStore("pg", store),
            rank=world.rank,
            world_size=world.world_size,
            timeout=TIMEOUT,
        )
        pg = dist.group.WORLD
        assert pg is not None
        dist.group.WORLD = None  # type: ignore[misc]  # the setter is on the metaclass
        return cls(world, pg, dist.PrefixStore("effects", store))

    # ---- tensors

    def start_all_reduce(self, x: Tensor, op: Any = SUM) -> Any:
        """Reduce in place over all ranks; `wait()` on the result before using `x`."""
        options = dist.AllreduceOptions()
        options.reduceOp = op
        return self.pg.allreduce([x], options)

    def all_reduce(self, x: Tensor, op: Any = SUM) -> Tensor:
        """Reduce in place over all ranks, and wait."""
        target = torch.view_as_real(x) if x.is_complex() else x
        self.start_all_reduce(target, op).wait()
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        """The ranks' tensors, of one shape, stacked along a new first dimension."""
        x = x.contiguous()
        out = x.new_empty((self.size, *x.shape))
        self.pg.allgather([list(out.unbind(0))], [x]).wait()
        return out

    def agree(self, yes: bool) -> bool:
        """Whether all ranks say yes."""
        return bool(self.all_reduce(torch.tensor([int(yes)]), MIN).item())

    def spread(self, values: Tensor) -> Tensor:
        """Largest minus smallest over ranks, element by element: zeros where all are equal."""
        high = torch.cat([values, -values])
        self.all_reduce(high, MAX)
        top, bottom = high.chunk(2)
        return top + bottom

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.agree(True)

    # ---- effects

    def effect(self, site: str, act: Callable[[], Any]) -> Any:
        """Rank 0 does `act` once; every rank gets its result, or raises what it raised.

        The n-th effect of a rank is the n-th of rank 0; `site` must be the same for both.

        Args:
            site: What is done, and the user's line; shown where ranks disagree.
            act: Returns something that JSON can carry.

        Raises:
            Disagreement: Rank 0 was elsewhere at its n-th effect.
        """
        return self.lead(site, act) if self.rank == 0 else self.follow(site)

    def lead(self, site: str, act: Callable[[], Any]) -> Any:
        """Rank 0's half of `effect`."""
        number = self._next()
        outcome = Outcome.of(act)
        self.store.set(f"e{number}", json.dumps([site, outcome.to_data()]))
        return outcome.unwrap()

    def follow(self, site: str) -> Any:
        """The other ranks' half of `effect`."""
        number = self._next()
        theirs, data = json.loads(self.store.get(f"e{number}"))
        if theirs != site:
            raise Disagreement(
                f"rank {self.rank} is at «{site}» where rank 0 is at «{theirs}» (side effect "
                f"{number}); a decision in the script differs between ranks"
            )
        return Outcome.from_data(data).unwrap()

    def _next(self) -> int:
        """Count an effect; now and then clear away what every rank has read."""
        number, self._effects = self._effects, self._effects + 1
        if number and number % KEPT == 0:
            self.store.set(f"at/{self.rank}/{number}", "")
            if self.rank == 0:
                self._clear(number)
        return number

    def _clear(self, number: int) -> None:
        before = number - KEPT
        if before <= 0:
            return
        keys = [f"at/{rank}/{before}" for rank in range(self.size)]
        self.store.wait(keys)  # nobody is still before them
        for key in keys + [f"e{k}" for k in range(before - KEPT, before)]:
            self.store.delete_key(key)
