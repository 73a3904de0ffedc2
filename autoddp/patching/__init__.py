"""Declare, install and exactly undo patches; knows nothing of torch.

Whoever changes a slot pushes its restoration on one `ExitStack` in the same breath, so undo runs
last in, first out, and a half-done install rolls back by itself.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, ClassVar, TypeVar

import wrapt

from autoddp.errors import PatchTargetMissing
from autoddp.patching.aliases import Aliases
from autoddp.patching.call import Call as Call
from autoddp.patching.call import stands_for as stands_for

Method = TypeVar("Method", bound=Callable[..., Any])
ABSENT = object()


@dataclass(frozen=True)
class Patch:
    """A replaced function: where, why, and which method of the feature serves it.

    `targets` are "module:Dotted.path"; several are aliases of one function. A hot patch is a plain
    function made once by its method from the original: ten times cheaper to call than a wrapper.
    """

    feature: str
    targets: tuple[str, ...]
    why: str
    method: str
    optional: bool = False
    hot: bool = False


def patch(
    *targets: str, why: str, optional: bool = False, hot: bool = False
) -> Callable[[Method], Method]:
    """Record that the decorated method of a `Feature` stands in for `targets`.

    The method is given each `Call`; or, if `hot`, once the original, and returns the function to
    put in place.
    """

    def record(method: Method) -> Method:
        method.__patch__ = (targets, why, optional, hot)  # type: ignore[attr-defined]
        return method

    return record


class Feature:
    """A promise and the patches that keep it; what it knows lives on its instance."""

    name: ClassVar[str]
    without: ClassVar[str] = ""  # what is so when it is left out, in one sentence
    views: ClassVar[tuple[str, ...]] = ("global", "local")  # where it applies
    apart: ClassVar[bool] = False  # whether only a job on several nodes needs it
    # whether it serves libraries, too, by whatever name they call it
    libraries: ClassVar[bool] = False

    def __init__(self, run: Any = None) -> None:
        self.run = run  # what the features of a job share; nothing here looks at it

    @classmethod
    def wanted(cls, options: Any) -> bool:
        """Return whether these options have any use for the feature."""
        return True

    def setup(self, undo: ExitStack) -> None:
        """Set up whatever is no patch: torch's own hooks, state. Push every reversal on `undo`."""

    @classmethod
    def patches(cls) -> list[Patch]:
        """Return the patches of this feature, in the order of declaration; needs no instance."""
        found: dict[str, Patch] = {}
        for owner in reversed(cls.__mro__):
            for method, value in vars(owner).items():
                if hasattr(value, "__patch__"):
                    targets, why, *ways = value.__patch__
                    found[method] = Patch(cls.name, targets, why, method, *ways)
        return list(found.values())


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
        self._originals: dict[str, Any] = {}
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
        self._originals.clear()
        self._done.clear()

    def __enter__(self) -> Installation:
        return self.install()

    def __exit__(self, *_: object) -> None:
        self.undo()

    def is_patched(self, target: str) -> bool:
        """Return whether `target` ("module:Dotted.path") is replaced at present."""
        return target in self._originals

    def original(self, target: str) -> Any:
        """Return what stood at `target` before it was replaced."""
        return self._originals[target]

    def status(self) -> Iterator[tuple[Patch, str]]:
        """Yield each patch with its state: active, waiting for import, or off."""
        for feature in self.features:
            for item in feature.patches():
                there = any(target in self._originals for target in item.targets)
                yield (
                    item,
                    "off" if not self.active else "active" if there else "waiting for import",
                )

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
        self._originals.setdefault(target, current)
        method = getattr(feature, item.method)
        slot = vars(owner).get(name, ABSENT)
        layer = [True]  # its own switch: a wrapper that somebody has wrapped stays off once undone
        replacement = (
            method(current)
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


def find(target: str, module: ModuleType, optional: bool = False) -> tuple[Any, str, Any]:
    """Return the owner of `target`, the attribute's name, and its value.

    The value is ABSENT if the target is optional and missing.

    Raises:
        PatchTargetMissing: The target is required, and not there.
    """
    *path, name = target.partition(":")[2].split(".")
    owner: Any = module
    for part in path:
        owner = getattr(owner, part, ABSENT)
    value = ABSENT if owner is ABSENT else getattr(owner, name, ABSENT)
    if value is ABSENT and not optional:
        version = getattr(sys.modules.get(module.__name__.partition(".")[0]), "__version__", "?")
        raise PatchTargetMissing(
            f"{target} does not exist in {module.__name__.partition('.')[0]} {version}; "
            "autoddp must be made to know this version before it can be used with it"
        )
    return owner, name, value


def assign(owner: Any, name: str, value: Any) -> None:
    """Set an attribute, also of a type written in C, which refuses `setattr`."""
    try:
        setattr(owner, name, value)
    except TypeError:
        slots: Sequence[Any] = gc.get_referents(vars(owner))  # the dict behind the mappingproxy
        slots[0][name] = value
        # call sites remember what they found
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(owner))


def restore(owner: Any, name: str, slot: Any, ours: Any) -> None:
    """Put `slot` back unless somebody has put theirs in place of ours since."""
    if vars(owner).get(name) is not ours:
        return
    if slot is not ABSENT:
        assign(owner, name, slot)
    else:
        delattr(owner, name)
