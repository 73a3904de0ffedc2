"""What outlives a job: batches held by rows become whole while the other ranks are there."""

from __future__ import annotations

from typing import Any

from torch.utils._pytree import tree_leaves, tree_map

from autoddp.errors import AutoDDPError
from autoddp.view import Partial, ShardedTensor, full
from autoddp.view.sharded_tensor import view_of

_SESSION = ("In", "Out")  # IPython's own variables; others begin with an underscore


def whole(value: Any) -> Any:
    """Gather the batches held by rows in a returned value, while the other ranks are here."""
    held = any(isinstance(leaf, (ShardedTensor, Partial)) for leaf in tree_leaves(value))
    return tree_map(full, value) if held else value


def make_whole(variables: dict[str, Any]) -> None:
    """Gather all that a notebook's variables hold by rows; lists and dictionaries stay the same."""
    seen: set[int] = set()
    for name, value in list(variables.items()):
        if not name.startswith("_") and name not in _SESSION:
            made = _made(value, seen)
            if made is not value:
                variables[name] = made


def make_all_whole(variables: dict[str, Any]) -> None:
    """Gather also what the session itself keeps: the values that cells have shown."""
    _made(variables, set())


def _made(value: Any, seen: set[int]) -> Any:
    if isinstance(value, (ShardedTensor, Partial)):
        try:
            return full(value)
        except AutoDDPError:
            if not view_of((value,)).context.over:
                raise
            return value  # of a job that has ended in an error: its other rows are lost
    if type(value) not in (list, dict, tuple) or id(value) in seen:
        return value
    seen.add(id(value))
    if type(value) is tuple:
        made = tuple(_made(item, seen) for item in value)
        return value if all(a is b for a, b in zip(made, value, strict=True)) else made
    for key, item in list(value.items() if type(value) is dict else enumerate(value)):
        new = _made(item, seen)
        if new is not item:
            value[key] = new
    return value
