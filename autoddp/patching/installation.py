"""Installation of patches, which is undone exactly.

Each change of a slot pushes its reversal on one `ExitStack`, so that undo runs in reverse order,
and a failed installation is rolled back.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from itertools import chain
from types import FunctionType, ModuleType
from typing import Any

import wrapt

from autoddp.own_hooks import own_hooks
from autoddp.patching.aliases import Aliases
from autoddp.patching.call import serve
from autoddp.patching.feature import Feature, Patch
from autoddp.patching.slots import ABSENT, assign, find, restore


class Installation:
    """The patches of some features, installed together and undone exactly.

    `importers` returns modules that may have imported a patched function; these names are patched,
    too. `libraries` returns further modules, for features with `libraries` set.

    Example:
        with Installation([feature]):
            ...
    """

    def __init__(
        self,
        features: Iterable[Feature],
        importers: Callable[[], Iterable[ModuleType]] = tuple,
        libraries: Callable[[], Iterable[ModuleType]] = tuple,
    ) -> None:
        self.features, self.importers, self.libraries = list(features), importers, libraries
        self.active = False
        self._undo = ExitStack()
        # names in the importers and in libraries, during `install`
        self._users: Aliases | None = None
        self._libraries: Aliases | None = None
        # (method, target): a method that several features inherit is installed once
        self._done: set[tuple[Any, str]] = set()

    def install(self) -> Installation:
        """Install all patches; a second call does nothing.

        Raises:
            PatchTargetMissing: A required target does not exist; the installation is rolled back.
        """
        if self.active:
            return self
        self.active = True
        self._users = Aliases(self.importers())
        self._libraries = Aliases(self.libraries(), libraries=True)
        try:
            for feature in self.features:
                with own_hooks():
                    feature.setup(self._undo)
                for item in feature.patches():
                    self._register(feature, item)
        except BaseException:
            self.undo()
            raise
        finally:
            self._users = self._libraries = None
        return self

    def undo(self) -> None:
        """Restore all slots in reverse order; a second call does nothing."""
        self.active = False
        self._undo.close()
        self._done.clear()

    def __enter__(self) -> Installation:
        return self.install()

    def __exit__(self, *_: object) -> None:
        self.undo()

    def _register(self, feature: Feature, item: Patch) -> None:
        for target in item.targets:
            name = target.partition(":")[0]
            root = name.partition(".")[0]

            def apply(module: ModuleType, target: str = target) -> None:
                method = getattr(type(feature), item.method)
                if self.active and (method, target) not in self._done:
                    self._apply(feature, item, target, module)

            if name in sys.modules or (root == "torch" and not item.optional):
                apply(importlib.import_module(name))
            else:
                wrapt.register_post_import_hook(apply, name)

    def _apply(self, feature: Feature, item: Patch, target: str, module: ModuleType) -> None:
        owner, name, current = find(target, module, optional=item.optional)
        if current is ABSENT:
            return
        self._done.add((getattr(type(feature), item.method), target))
        method = getattr(feature, item.method)
        slot = vars(owner).get(name, ABSENT)
        enabled = [True]  # emptied to disable a wrapper that other code has wrapped
        replacement = (
            _scripted_as(current, method(current))
            if item.hot
            else wrapt.FunctionWrapper(
                current if slot is ABSENT else slot,
                partial(serve, method, target),
                enabled=lambda: bool(enabled),
            )
        )
        assign(owner, name, replacement)
        self._undo.callback(restore, owner, name, slot, replacement)
        if isinstance(owner, ModuleType):
            aliases = [self._users or Aliases(self.importers())]
            aliases += [self._libraries] if feature.libraries and self._libraries else []
            for holder, alias, value in chain(*(x.replace(current, replacement) for x in aliases)):
                previous = vars(holder)[alias]
                assign(holder, alias, value)
                self._undo.callback(restore, holder, alias, previous, value)
        self._undo.callback(enabled.clear)


def _scripted_as(original: Any, replacement: Any) -> Any:
    """Let `torch.jit.script` compile the source of the original."""
    if isinstance(replacement, FunctionType):
        vars(replacement)["__prepare_scriptable__"] = lambda: original
    return replacement
