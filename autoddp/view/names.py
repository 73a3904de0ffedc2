"""The names of modules, as a user knows them: `Net.encoder.0`."""

from __future__ import annotations

import fnmatch
import gc
import weakref

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


class LeftOut:
    """The modules that never run by rows as one, by patterns of names; nor does what holds them."""

    def __init__(self, patterns: tuple[str, ...]) -> None:
        self.patterns = patterns
        self.known: weakref.WeakKeyDictionary[nn.Module, bool] = weakref.WeakKeyDictionary()

    def covers(self, module: nn.Module) -> bool:
        """Return whether the module, or a part of it, is left out."""
        if not self.patterns:
            return False
        if module not in self.known:
            names = named_modules()
            chosen = {at for at, (name, _) in names.items() if self._matches(name)}
            for _, each in names.values():
                self.known[each] = any(id(part) in chosen for part in each.modules())
        return self.known.setdefault(module, False)

    def _matches(self, name: str) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.patterns)
