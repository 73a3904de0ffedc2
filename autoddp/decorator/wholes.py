"""Gather the sharded batches in values that outlive a job, before the other ranks end."""

from __future__ import annotations

from typing import Any

from torch.utils._pytree import tree_leaves, tree_map

from autoddp.view import Partial, ShardedTensor, full

KINDS = (ShardedTensor, Partial)
SESSION = ("In", "Out")  # IPython's variables; its others begin with an underscore


def whole(value: Any) -> Any:
    """Return the value with its sharded batches gathered; all ranks must call this."""
    sharded = any(isinstance(leaf, KINDS) for leaf in tree_leaves(value))
    return tree_map(full, value) if sharded else value


def gather_in_place(container: Any, seen: set[int]) -> None:
    """Gather, in place, the sharded batches in a notebook's variables, a list or a dictionary."""
    if id(container) in seen:
        return
    top = not seen
    seen.add(id(container))
    items = container.items() if isinstance(container, dict) else enumerate(container)
    for key, value in list(items):
        if top and (key in SESSION or str(key).startswith("_")):
            continue
        if type(value) in (list, dict):
            gather_in_place(value, seen)
        elif isinstance(value, KINDS) or type(value) is tuple:
            container[key] = whole(value)
