"""Install patches, and undo them exactly.

Whoever changes a slot pushes its restoration on one `ExitStack` in the same breath, so undo runs
last in, first out, and a half-done install rolls back by itself.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

import wrapt

from autoddp.patching.aliases import Aliases
from autoddp.patching.call import Call
from autoddp.patching.feature import Feature, Patch
from autoddp.patching.slots import ABSENT, assign, find, restore


class Installation:
    """The patches of some features, installed together and undone exactly.

    `importers` tells whose modules may hold a patched function by a name of their own, from an
    import before the installation: that name is replaced, too. `libraries` tells further ones, for
    features that serve libraries.

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
        self._now: list[ModuleType] | None = None  # the importers, while all is installed at once
        self._aliases: Aliases | None = None  # of libraries, as long
        # by method and target: two features may patch one target, the later is outside; a method
        # that several have of one base is there once
        self._done: set[tuple[Any, str]] = set()

    def install(self) -> Installation:
        """Install all patches; a second call does nothing.

        Raises:
            PatchTargetMissing: A required target does not exist; all is rolled back.
        """
        if self.active:
            return self
        self.active = True
        self._now = list(self.importers())  # asked at each patch, they took most of the time
        self._aliases = Aliases(self.libraries())
        try:
            for feature in self.features:
                feature.setup(self._undo)
                for item in feature.patches():
                    self._register(feature, item)
        except BaseException:
            self.undo()
            raise
        finally:
            self._now = self._aliases = None
        return self

    def undo(self) -> None:
        """Put every slot back as it was found, last in, first out; twice is harmless."""
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

            def act(module: ModuleType, target: str = target) -> None:
                method = getattr(type(feature), item.method)
                if self.active and (method, target) not in self._done:
                    self._apply(feature, item, target, module)

            if name in sys.modules or (root == "torch" and not item.optional):
                act(importlib.import_module(name))
            else:
                wrapt.register_post_import_hook(act, name)

    def _apply(self, feature: Feature, item: Patch, target: str, module: ModuleType) -> None:
        owner, name, current = find(target, module, optional=item.optional)
        if current is ABSENT:
            return
        self._done.add((getattr(type(feature), item.method), target))
        method = getattr(feature, item.method)
        slot = vars(owner).get(name, ABSENT)
        layer = [True]  # its own switch: a wrapper that somebody has wrapped stays off once undone
        replacement = (
            _scripted_as(current, method(current))
            if item.hot
            else wrapt.FunctionWrapper(
                current if slot is ABSENT else slot,
                partial(_serve, method, target),
                enabled=lambda: bool(layer),
            )
        )
        assign(owner, name, replacement)
        self._undo.callback(restore, owner, name, slot, replacement)
        if isinstance(owner, ModuleType):
            self._replace_imported(current, replacement)
            if feature.libraries and self._aliases is not None:
                for holder, alias, value in self._aliases.replace(current, replacement):
                    before = vars(holder)[alias]
                    assign(holder, alias, value)
                    self._undo.callback(restore, holder, alias, before, value)
        self._undo.callback(layer.clear)

    def _replace_imported(self, current: Any, replacement: Any) -> None:
        """Replace names of earlier imports, as `from torch.utils.checkpoint import checkpoint`."""
        for module in self.importers() if self._now is None else self._now:
            for name in _holds(vars(module), current):
                before = vars(module)[name]
                assign(module, name, replacement)
                self._undo.callback(restore, module, name, before, replacement)


def _holds(space: dict[str, Any], value: Any) -> Iterator[str]:
    """Yield the names in `space` for `value`, or for a former wrapper of ours around it."""
    for name, found in list(space.items()):
        wrapped = type(found) is wrapt.FunctionWrapper and found.__wrapped__ is value
        if found is value or (wrapped and _is_ours(found)):
            yield name


def _scripted_as(original: Any, replacement: Any) -> Any:
    """Have `torch.jit.script`, which compiles a function's source, take the original's."""
    if isinstance(replacement, FunctionType):
        vars(replacement)["__prepare_scriptable__"] = lambda: original
    return replacement


def _serve(
    method: Callable[[Call], Any],
    target: str,
    wrapped: Callable[..., Any],
    instance: Any,
    args: Any,
    kwargs: Any,
) -> Any:
    """Let a feature's method serve a call, as wrapt hands it over."""
    return method(Call(wrapped, args, kwargs, instance, target))


def _is_ours(found: Any) -> bool:
    serves = found._self_wrapper
    return isinstance(serves, partial) and serves.func is _serve
