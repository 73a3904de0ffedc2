"""Decisions with their reasons, and the lines that are printed of them."""

from __future__ import annotations

import json
import os
import re
import select
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from types import FrameType, ModuleType
from typing import Any, TextIO

from autoddp.errors import BadInput, one_line
from autoddp.report import bars, places
from autoddp.report.begun import Begun, SharedFlag
from autoddp.report.temporary import temporary_folder

PREFIX = "[autoddp]"
VERSION = 1  # of what --report writes
LINE = re.compile(r"\S+:\d+$")  # in the place of a decision: the script's line


@dataclass
class Decision:
    """A decision about one place in the user's script, and how often it came up."""

    kind: str
    where: str
    what: str
    count: int = 1
    size: int = 0  # bytes that were gathered


@dataclass
class Report:
    """The decisions of a run, which rank 0 prints once, in lines that begin with [autoddp]."""

    speaks: bool = False
    strict: bool = False
    stream: TextIO = field(default_factory=lambda: sys.stderr)
    decisions: dict[tuple[str, str, str], Decision] = field(default_factory=dict)
    begun: Begun = field(default_factory=Begun)  # whether the script has begun a line
    flag: SharedFlag | None = None  # the launcher's, which also prints lines
    delayed: list[str] = field(default_factory=list)  # printed once the script has ended the line
    # for --report, once the script has ended: where the seconds of this rank went, what share of
    # the computing was sharded, and how many bytes were gathered
    times: dict[str, float] = field(default_factory=dict)
    shared: float | None = None
    gathered: float = 0
    prompts: bool = False  # whether the script waits for what is typed

    def add(self, kind: str, where: str, what: str, size: int = 0) -> bool:
        """Note a decision, about `size` bytes; return whether it is new."""
        key = (kind, where, what)
        found = self.decisions.get(key)
        if found is None:
            self.decisions[key] = Decision(kind, where, what, size=size)
            return True
        found.count += 1
        found.size += size
        return False

    def say(self, text: str) -> None:
        """Print one line, on rank 0: above the bars of a terminal, and not in a prompt."""
        if not self.speaks:
            return
        if self.prompts:
            self.delayed.append(text)
            return
        line, write = f"{PREFIX} {one_line(text)}", bars.above(self.stream)
        if write is None or bars.is_log(self.stream):
            stream, text = self.stream, f"{self.begun.end()}{line}\n"
            if "write" in getattr(stream, "__dict__", {}) and hasattr(type(stream), "write"):
                # past a `write` that was set on it to capture what the script prints
                type(stream).write(stream, text)
            else:
                stream.write(text)
            stream.flush()
        else:
            write(line)

    def say_between(self, text: str) -> None:
        """Print one line above a bar; else once the script has ended a line that it has begun."""
        if self.begun() and bars.above(self.stream) is None:
            self.delayed.append(text)
        else:
            self.say(text)

    def release(self) -> None:
        """Print the lines that were held."""
        delayed, self.delayed = self.delayed, []
        for text in delayed:
            self.say(text)

    def release_between(self) -> None:
        """Print them at the end of a line, unless a bar is up."""
        if self.delayed and bars.above(self.stream) is None:
            self.release()

    @contextmanager
    def prompting(self) -> Iterator[None]:
        """Hold all lines while the script waits for input from the terminal."""
        before, self.prompts = self.prompts, True
        try:
            yield
        finally:
            self.prompts = before
            self.begun.end()  # the input ended the line
            self.release_between()

    def say_once(self, kind: str, where: str, what: str) -> None:
        """Note a decision and, the first time, print it."""
        if self.add(kind, where, what):
            self.say(f"{where}: {what}" if where else what)

    def doubt(self, kind: str, where: str, what: str) -> None:
        """Print once, or refuse with --strict, what one process would not have done.

        Raises:
            BadInput: The job is strict.
        """
        if self.strict:
            raise BadInput(f"--strict: {where + ': ' if where else ''}{what}")
        self.say_once(kind, where, what)

    def of(self, kind: str) -> list[Decision]:
        """Return all decisions of a kind, the most frequent first."""
        found = [d for d in self.decisions.values() if d.kind == kind]
        return sorted(found, key=lambda d: -d.count)

    def to_json(self, **about: Any) -> str:
        """Return the report as JSON, for --report PATH."""
        decisions = [
            vars(made) | {"line": line[0] if (line := LINE.search(made.where)) else None}
            for made in self.decisions.values()
        ]
        known = {"times": self.times, "shared": self.shared, "gathered": self.gathered}
        return json.dumps({"version": VERSION} | about | known | {"decisions": decisions}, indent=2)


class _Users(dict[str, bool]):
    """A cache of `is_users`: wrappers ask twenty times a step, and a function is slow."""

    def __missing__(self, filename: str) -> bool:
        temporary = filename.startswith(_TEMPORARY)
        found = is_own(filename) and (
            not temporary or _is_imported(filename) or bool(places.cell(filename))
        )
        if found or not temporary:  # else it may be imported later
            self[filename] = found
        return found


# Whether a code object's file is the user's: not Python's, not installed, not ours, not generated.
is_users: Callable[[str], bool] = _Users().__getitem__


@cache
def is_own(filename: str) -> bool:
    """Return whether a file is not Python's, installed or ours; a library may have written it."""
    if filename.endswith(_CUSTOMIZE):
        return False
    if filename.startswith("<"):
        return filename.startswith(_TYPED)
    return not filename.startswith(_LIBRARIES) and not any(part in filename for part in INSTALLED)


def _is_imported(filename: str) -> bool:
    """Return whether a file in the temporary folder is on `sys.path`: then it is the user's.

    A library that writes its code there loads it by its path. The answer is kept: a script may
    change its folder, and `sys.path`.
    """
    if filename in _imported:
        return True
    try:
        here = os.getcwd()
    except FileNotFoundError:
        here = "/nowhere"  # the current folder was deleted
    folders = [os.path.normpath(os.path.join(here, folder)) for folder in ("", *sys.path)]
    found = any(filename.startswith(folder + "/") for folder in folders)
    if found:
        _imported.add(filename)
    return found


_imported: set[str] = set()
# the user's code that is in no file; the last two are `%%time`'s and `%%timeit`'s of a notebook
_TYPED = ("<stdin", "<string", "<ipython", "<timed ", "<magic-timeit")
_CUSTOMIZE = ("/sitecustomize.py", "/usercustomize.py")  # the interpreter's own
INSTALLED = ("/site-packages/", "/dist-packages/")  # also a user's own, and a distribution's
_TEMPORARY = temporary_folder() + "/"
_PATHS = sysconfig.get_paths()
_LIBRARIES = tuple(
    {_PATHS[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    | {os.path.dirname(os.path.dirname(__file__)) + "/"}
)


def users_modules() -> list[ModuleType]:
    """Return the loaded modules that are the user's own."""
    loaded = list(sys.modules.items())
    return [m for name, m in loaded if name == "__main__" or is_users(file_of(m) or "<")]


def file_of(module: ModuleType) -> str:
    """Return a module's file, or nothing; without importing what a lazy module stands for."""
    try:
        found = object.__getattribute__(module, "__dict__").get("__file__")
    except AttributeError:  # no module
        return ""
    return found if isinstance(found, str) else ""


def library_modules() -> list[ModuleType]:
    """Return the loaded modules of installed libraries; not ours, nor torch's, which are many."""
    loaded = list(sys.modules.items())
    files = (
        (name, m, getattr(m, "__file__", None) or "") for name, m in loaded if type(m) is ModuleType
    )
    return [
        module
        for name, module, file in files
        if name.partition(".")[0] not in ("torch", "autoddp")
        and any(part in file for part in INSTALLED)
    ]


def users_frame(depth: int = 1) -> FrameType | None:
    """Return the nearest calling frame that runs the user's own code, or None."""
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def users_line(depth: int = 1) -> str:
    """Return the line of the user's code that led here, as `train.py:41`; `?` if there is none."""
    return places.named(users_frame(depth + 1))


def stdout_is_read() -> bool:
    """Return whether the reader of stdout has not ended yet, as `head` does early."""
    poll = select.poll()
    poll.register(1, 0)
    return not poll.poll(0)  # of nothing but errors
