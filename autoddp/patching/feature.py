"""Declare a feature: a promise, and the patches that keep it; nothing here acts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

Method = TypeVar("Method", bound=Callable[..., Any])


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
    """Declare that the decorated method of a `Feature` replaces `targets`.

    The method is called with each `Call`; if `hot`, once with the original, and returns the
    replacement.
    """

    def record(method: Method) -> Method:
        method.__patch__ = (targets, why, optional, hot)  # type: ignore[attr-defined]
        return method

    return record


class Feature:
    """A promise and the patches that keep it; what it knows lives on its instance."""

    name: ClassVar[str]
    without: ClassVar[str] = ""  # what happens without it, in one sentence
    views: ClassVar[tuple[str, ...]] = ("global", "local")  # where it applies
    apart: ClassVar[bool] = False  # whether only a job on several nodes needs it
    # whether names in libraries are replaced, too
    libraries: ClassVar[bool] = False

    def __init__(self, run: Any = None) -> None:
        self.run = run  # what the features of a job share

    @classmethod
    def wanted(cls, options: Any) -> bool:
        """Return whether these options need the feature."""
        return True

    def setup(self, undo: ExitStack) -> None:
        """Set up what is no patch: torch's own hooks, state. Push every reversal on `undo`."""

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
