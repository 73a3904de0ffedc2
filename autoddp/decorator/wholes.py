"""Values that outlive a job: sharded batches are gathered while the other ranks are there."""

from __future__ import annotations

from typing import Any

from torch.utils._pytree import tree_leaves, tree_map

from autoddp.view import Partial, ShardedTensor, full

KINDS = (ShardedTensor, Partial)
SESSION = ("In", "Out")  # IPython's own variables; others begin with an underscore


def whole(value: Any) -> Any:
    """Gather the sharded batches in a value, while the other ranks are there."""
    held = any(isinstance(leaf, KINDS) for leaf in tree_leaves(value))
    return tree_map(full, value) if held else value


def make_whole(held: Any, seen: set[int]) -> None:
    """Gather, in place, the sharded batches in a notebook's variables, a list or a dictionary."""
    if id(held) in seen:
        return
    top = not seen
    seen.add(id(held))
    for key, value in list(held.items() if isinstance(held, dict) else enumerate(held)):
        if top and (key in SESSION or str(key).startswith("_")):
            continue
        if type(value) in (list, dict):
            make_whole(value, seen)
        elif isinstance(value, KINDS) or type(value) is tuple:
            held[key] = whole(value)
