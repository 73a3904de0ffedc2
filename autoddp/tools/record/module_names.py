"""The names of modules, as a user knows them: `Net.encoder.0`."""

from __future__ import annotations

import gc

from torch import nn

OURS = ("autoddp.", "torch.nn.parallel")


def named_modules() -> dict[int, tuple[str, nn.Module]]:
    """Return the name and the module of all that have parameters, by their id.

    A name is the type of the outermost module, then the way to this one.
    """
    users = [
        m
        for m in gc.get_objects()
        if issubclass(type(m), nn.Module) and not type(m).__module__.startswith(OURS)
    ]
    inner = {id(child) for m in users for child in m.modules() if child is not m}
    found: dict[int, tuple[str, nn.Module]] = {}
    for outermost in users:
        if id(outermost) not in inner:
            for path, module in outermost.named_modules(prefix=type(outermost).__name__):
                if next(nn.Module.parameters(module), None) is not None:
                    found.setdefault(id(module), (path, module))
    return found
