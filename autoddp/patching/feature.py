"""Declaration of features and their patches; `installation.py` installs them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

Method = TypeVar("Method", bound=Callable[..., Any])


@dataclass(frozen=True)
class Patch:
    """A patch: the replaced targets, the reason, and the method of the feature that replaces them.

    Each of `targets` is "module:Dotted.path". The method of a `hot` patch makes a plain function
    from the original, which is ten times as fast as a wrapper.
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
    """Declare that the decorated method of a `Feature` replaces `targets`.

    The method gets each `Call`; if `hot`, it gets the original once and returns the replacement.
    """

    def record(method: Method) -> Method:
        method.__patch__ = (targets, why, optional, hot)  # type: ignore[attr-defined]
        return method

    return record


class Feature:
    """A promise and the patches that keep it; its state is in the instance."""

    name: ClassVar[str]
    without: ClassVar[str] = ""  # the effect of disabling it, in one sentence
    views: ClassVar[tuple[str, ...]] = ("global", "local")  # the views that use it
    apart: ClassVar[bool] = False  # whether only jobs on several nodes use it
    # whether names in libraries are patched, too
    libraries: ClassVar[bool] = False

    def __init__(self, run: Any = None) -> None:
        self.run = run  # state shared by all features

    @classmethod
    def wanted(cls, options: Any) -> bool:
        """Return whether these options need the feature."""
        return True

    def setup(self, undo: ExitStack) -> None:
        """Install hooks and state other than patches; push each reversal on `undo`."""

    @classmethod
    def patches(cls) -> list[Patch]:
        """Return the patches of this feature in order of declaration."""
        patches: dict[str, Patch] = {}
        for owner in reversed(cls.__mro__):
            for method, value in vars(owner).items():
                if hasattr(value, "__patch__"):
                    targets, why, *flags = value.__patch__
                    patches[method] = Patch(cls.name, targets, why, method, *flags)
        return list(patches.values())
