"""What holds values, as it was before a trial: dicts, lists, sets, slots, classes and variables.

Each function returns a check, which puts back what was there and returns the names of what had
changed. What is equal to what was there is put back, too: it may be a size that a trial has noted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import CellType
from typing import Any

from autoddp.training.sharing.code import content_of, data_in

PLAIN = (bool, int, float, complex, str, bytes, type(None))
GONE = object()

Changed = Callable[[], list[str]]


def same(a: Any, b: Any) -> bool:
    """Return whether a value is what was there, or a number or text that is equal to it."""
    return a is b or (type(a) is type(b) and isinstance(a, PLAIN) and a == b)


def _changed(now: dict[str, Any], before: dict[str, Any]) -> list[str]:
    return [
        name for name in {**before, **now} if not same(now.get(name, GONE), before.get(name, GONE))
    ]


def names(space: dict[str, Any]) -> Changed:
    """Keep a dict, or the attributes of an object."""
    before = dict(space)

    def check() -> list[str]:
        changed = _changed(space, before)
        if changed:
            space.clear()
        space.update(before)
        return changed

    return check


def file(space: dict[str, Any]) -> Changed:
    """Keep the values among a file's globals."""
    before = data_in(space)

    def check() -> list[str]:
        changed = _changed(data_in(space), before)
        for name in changed:
            space.pop(name, None)
        space.update(before)
        return changed

    return check


def attributes(owner: Any, look: Callable[[], dict[str, Any]]) -> Changed:
    """Keep those attributes that `look` returns, which are set and deleted past the owner."""
    before = look()
    setting = type if isinstance(owner, type) else object

    def check() -> list[str]:
        now = look()
        changed = _changed(now, before)
        for name in changed:
            if name in now:
                setting.__delattr__(owner, name)
        for name, value in before.items():
            if name in changed or now[name] is not value:
                setting.__setattr__(owner, name, value)
        return changed

    return check


def slots(value: Any) -> dict[str, Any]:
    """Return what an object holds in `__slots__`."""
    found = {name: getattr(value, name, GONE) for name in _slotted(type(value))}
    return {name: held for name, held in found.items() if held is not GONE}


def _slotted(kind: type) -> Iterator[str]:
    for one in kind.__mro__:
        some = vars(one).get("__slots__", ())
        for name in (some,) if isinstance(some, str) else some:
            if not name.startswith("__"):
                yield name
            elif not name.endswith("__"):  # a private one
                yield f"_{one.__name__.lstrip('_')}{name}"


def elements(value: Any) -> Changed:
    """Keep what a list or a deque holds."""
    before = list(value)

    def check() -> list[str]:
        alike = len(value) == len(before) and all(map(same, value, before))
        if not alike or any(a is not b for a, b in zip(value, before, strict=True)):
            value.clear()
            value.extend(before)
        return [] if alike else ["elements"]

    return check


def members(value: set[Any]) -> Changed:
    """Keep what a set holds."""
    before = set(value)

    def check() -> list[str]:
        if value == before:
            return []
        value.clear()
        value.update(before)
        return ["members"]

    return check


def variable(cell: CellType) -> Changed:
    """Keep what a variable of the function around one holds."""
    before = cell.cell_contents

    def check() -> list[str]:
        alike, cell.cell_contents = same(content_of(cell), before), before
        return [] if alike else ["contents"]

    return check
