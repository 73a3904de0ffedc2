"""Streams of random numbers of this rank's own, for draws that are not made for the whole batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from autoddp.comm import accelerator

if TYPE_CHECKING:
    from autoddp.view.state import View


@contextmanager
def own_stream(
    view: View | None, device: torch.device, named: torch.Generator | None = None
) -> Iterator[None]:
    """Draw from this rank's own stream in here; the generator outside stays where it is.

    Args:
        view: The view of this rank; not None.
        device: The device that draws.
        named: The generator that the script draws from, where it names one.
    """
    assert view is not None
    where = accelerator.at(device)
    key = where if named is None else named
    outside = accelerator.state(where) if named is None else named.get_state()
    own = view.streams.get(key)
    if own is None:
        seed = torch.initial_seed() if named is None else named.initial_seed()
        own = torch.Generator(where).manual_seed(seed + 7919 * (view.group.rank + 1)).get_state()
    _go_on_from(own, where, named)
    try:
        yield
    finally:
        view.streams[key] = accelerator.state(where) if named is None else named.get_state()
        _go_on_from(outside, where, named)


def _go_on_from(state: Tensor, device: torch.device, named: torch.Generator | None) -> None:
    if named is None:
        accelerator.set_state(device, state)
    else:
        named.set_state(state)
