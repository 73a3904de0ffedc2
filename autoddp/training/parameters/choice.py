"""Whether parameters are sharded: with `auto` if they would not fit on a rank's device."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from autoddp.comm.accelerator import CPU
from autoddp.comm.group import MIN, Group
from autoddp.training.parameters.shard_group import ShardGroup, by_nodes

SHARE = 0.7  # of free memory that parameters, gradients and two states may take
SMALL = 1 << 26  # bytes of a model for which no rank asks how much is free
STATES = 3  # a gradient and an optimizer's two states, for each parameter that is trained
CGROUP = Path("/sys/fs/cgroup")
UNKNOWN: Any = object()
LIMITS = (
    (CGROUP / "memory.max", CGROUP / "memory.current"),
    (CGROUP / "memory/memory.limit_in_bytes", CGROUP / "memory/memory.usage_in_bytes"),
)


def needed(parameters: Iterable[Tensor]) -> tuple[int, int]:
    """Return the bytes of parameters, and of their gradients and an optimizer's states."""
    held = more = 0
    for p in parameters:
        held += p.nbytes
        more += STATES * p.nbytes if p.requires_grad else 0
    return held, more


def free_on_host(ranks: int) -> int:
    """Return the bytes of memory that are free for each of the ranks of this node."""
    found = [_available(), *(_left(*files) for files in LIMITS)]
    return min(x for x in found if x is not None) // ranks


def _available() -> int:
    with open("/proc/meminfo") as file:
        lines = dict(line.split(":") for line in file)
    return int(lines["MemAvailable"].split()[0]) << 10


def _left(limit: Path, used: Path) -> int | None:
    """Return what a cgroup may still use; None without a limit."""
    try:
        most, now = limit.read_text().strip(), used.read_text().strip()
        return int(most) - int(now) if most.isdigit() else None
    except (OSError, ValueError):
        return None


def free_on(device: torch.device, ranks: int) -> int:
    """Return the bytes that are free on a device for this rank."""
    module: Any = getattr(torch, device.type, None)
    if device.type != "cpu" and hasattr(module, "mem_get_info"):
        return int(module.mem_get_info(device)[0])
    return free_on_host(ranks)


class Choice:
    """The choice of one job, alike on all ranks.

    Args:
        wanted: "auto", "sharded" or "replicated".
        ranks: The number of ranks on this node.
    """

    def __init__(self, wanted: str, group: Group, ranks: int) -> None:
        self.wanted, self.group, self.ranks = wanted, group, ranks
        self._all, self._by_node = ShardGroup(group), UNKNOWN

    def why(self, parameters: list[Any], device: torch.device) -> str:
        """Return why parameters that go to a device are sharded; nothing if they are not.

        All ranks call this at the same place.
        """
        if self.wanted != "auto":
            return "--parameters sharded" if self.wanted == "sharded" else ""
        total = sum(needed(parameters))
        if total < SMALL or total <= SHARE * (free := self._free(parameters, device)):
            return ""
        return (
            f"with gradients and an optimizer's states they take {_size(total)}, "
            f"of {_size(free)} free on {device}"
        )

    def over(self, parameters: list[Any], device: torch.device) -> ShardGroup:
        """Return the ranks over which parameters are sharded: those of each node if they fit there.

        All ranks call this at the same place.
        """
        if self._by_node is UNKNOWN:
            self._by_node = by_nodes(self.group)
        node, total = self._by_node, sum(needed(parameters))
        if node is None:
            return self._all
        fits = total < SMALL or total <= SHARE * node.size * self._free(parameters, device)
        return node if fits else self._all

    def _free(self, parameters: list[Any], device: torch.device) -> int:
        """Return what is free on every rank's device, what these take there included."""
        here = sum(p.nbytes for p in parameters if p.device.type == device.type)
        tensor = torch.tensor([free_on(device, self.ranks) + here], device=CPU)
        return int(self.group.all_reduce(tensor, MIN).item())

    def crowding(self, parameters: list[Any]) -> str:
        """Say how much host memory the models of this node's ranks take, if that is most of it."""
        taken = self.ranks * sum(p.nbytes for p in parameters if p.is_cpu)
        if taken < SMALL or taken <= SHARE * (taken + (left := free_on_host(1))):
            return ""
        return (
            f"each of {self.ranks} ranks on this node has built the whole model, {_size(taken)} of "
            f"host memory, of which {_size(left)} is left; if it runs out, use fewer "
            "ranks for each node"
        )


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.0f} MB"
