"""Decisions with their reasons, and the lines that report them."""

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
from autoddp.report.begun import OpenLine, SharedFlag
from autoddp.report.temporary import temporary_folder

PREFIX = "[autoddp]"
VERSION = 1  # of the format of --report
LINE = re.compile(r"\S+:\d+$")  # the script's line, in the place of a decision


@dataclass
class Decision:
    """A decision about one place in the user's script, and how often it came up."""

    kind: str
    where: str
    what: str
    count: int = 1
    size: int = 0  # gathered bytes


@dataclass
class Report:
    """The decisions of a run, which rank 0 prints once in lines that begin with [autoddp]."""

    speaks: bool = False
    strict: bool = False
    stream: TextIO = field(default_factory=lambda: sys.stderr)
    decisions: dict[tuple[str, str, str], Decision] = field(default_factory=dict)
    begun: OpenLine = field(default_factory=OpenLine)  # unfinished last lines of the script
    flag: SharedFlag | None = None  # shared with the launcher, which also prints lines
    delayed: list[str] = field(default_factory=list)  # printed once the script's line is finished
    # for --report, at the end: the exit code of a script, the seconds of this rank by kind of work,
    # the sharded fraction of computing, and the number of gathered bytes
    exit: int | None = None
    times: dict[str, float] = field(default_factory=dict)
    shared: float | None = None
    gathered: float = 0
    prompts: bool = False  # whether the script waits for input from the terminal

    def add(self, kind: str, where: str, what: str, size: int = 0) -> bool:
        """Count a decision about `size` bytes; return whether it is new."""
        key = (kind, where, what)
        known = self.decisions.get(key)
        if known is None:
            self.decisions[key] = Decision(kind, where, what, size=size)
            return True
        known.count += 1
        known.size += size
        return False

    def say(self, text: str) -> None:
        """Print a line on rank 0, above progress bars of a terminal; during a prompt, delay it."""
        if not self.speaks:
            return
        if self.prompts:
            self.delayed.append(text)
            return
        line, write = f"{PREFIX} {one_line(text)}", bars.above(self.stream)
        if write is None or bars.is_log(self.stream):
            stream, text = self.stream, f"{self.begun.end()}{line}\n"
            if "write" in getattr(stream, "__dict__", {}) and hasattr(type(stream), "write"):
                # bypass a `write` that captures the output of the script
                type(stream).write(stream, text)
            else:
                stream.write(text)
            stream.flush()
        else:
            write(line)

    def say_between(self, text: str) -> None:
        """Print a line above a progress bar, or once the script's last line is finished."""
        if self.begun() and bars.above(self.stream) is None:
            self.delayed.append(text)
        else:
            self.say(text)

    def release(self) -> None:
        """Print the delayed lines."""
        delayed, self.delayed = self.delayed, []
        for text in delayed:
            self.say(text)

    def release_between(self) -> None:
        """Print the delayed lines, unless a progress bar is shown."""
        if self.delayed and bars.above(self.stream) is None:
            self.release()

    @contextmanager
    def prompting(self) -> Iterator[None]:
        """Delay all lines while the script waits for input from the terminal."""
        previous, self.prompts = self.prompts, True
        try:
            yield
        finally:
            self.prompts = previous
            self.begun.end()  # the input has finished the line
            self.release_between()

    def say_once(self, kind: str, where: str, what: str) -> None:
        """Count a decision, and print it the first time."""
        if self.add(kind, where, what):
            self.say(f"{where}: {what}" if where else what)

    def doubt(self, kind: str, where: str, what: str) -> None:
        """Report once a decision that may change the result.

        Raises:
            BadInput: With --strict.
        """
        if self.strict:
            raise BadInput(f"--strict: {where + ': ' if where else ''}{what}")
        self.say_once(kind, where, what)

    def of(self, kind: str) -> list[Decision]:
        """Return all decisions of a kind, the most frequent first."""
        decisions = [d for d in self.decisions.values() if d.kind == kind]
        return sorted(decisions, key=lambda d: -d.count)

    def to_json(self, **about: Any) -> str:
        """Return the report as JSON, for --report PATH."""
        decisions = [
            vars(each) | {"line": line[0] if (line := LINE.search(each.where)) else None}
            for each in self.decisions.values()
        ]
        sums = {"times": self.times, "shared": self.shared, "gathered": self.gathered}
        return json.dumps({"version": VERSION} | about | sums | {"decisions": decisions}, indent=2)


class _Users(dict[str, bool]):
    """A cache of `is_users`, as wrappers call it about twenty times a step."""

    def __missing__(self, filename: str) -> bool:
        temporary = filename.startswith(_TEMPORARY)
        users = is_own(filename) and not _COMPILED.fullmatch(filename)
        users = users and (not temporary or _is_imported(filename) or bool(places.cell(filename)))
        if users or not temporary:  # a temporary file may be imported later
            self[filename] = users
        return users


# Whether a code object's file is the user's: not Python's, installed, autoddp's or generated.
is_users: Callable[[str], bool] = _Users().__getitem__


@cache
def is_own(filename: str) -> bool:
    """Return whether a file is not Python's, installed or autoddp's; it may be generated."""
    if filename.endswith(_CUSTOMIZE):
        return False
    if filename.startswith("<"):
        return filename.startswith(_TYPED)
    return not filename.startswith(_LIBRARIES) and not any(part in filename for part in INSTALLED)


def _is_imported(filename: str) -> bool:
    """Return whether a file in the temporary folder is on `sys.path`, and so the user's.

    A library loads code that it generates there by its path. True is cached, as a script may
    change its folder and `sys.path`.
    """
    if filename in _imported:
        return True
    try:
        current = os.getcwd()
    except FileNotFoundError:
        current = "/nowhere"  # the current folder was deleted
    folders = [os.path.normpath(os.path.join(current, folder)) for folder in ("", *sys.path)]
    imported = any(filename.startswith(folder + "/") for folder in folders)
    if imported:
        _imported.add(filename)
    return imported


_imported: set[str] = set()
# user code outside of files; the last two are `%%time` and `%%timeit` of a notebook
_TYPED = ("<stdin", "<string", "<ipython", "<timed ", "<magic-timeit")
_CUSTOMIZE = ("/sitecustomize.py", "/usercustomize.py")  # the interpreter's own
INSTALLED = ("/site-packages/", "/dist-packages/")
_COMPILED = re.compile(r".*/(..)/c\1[a-z2-7]{49}\.py")  # torch's compiler, wherever its cache is
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
    """Return a module's file, or an empty text; a lazy module is not imported."""
    try:
        file = object.__getattribute__(module, "__dict__").get("__file__")
    except AttributeError:  # not a module
        return ""
    return file if isinstance(file, str) else ""


def library_modules() -> list[ModuleType]:
    """Return the loaded modules of installed libraries, except autoddp and torch."""
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
    """Return the current line of the user's code, as `train.py:41`; `?` if there is none."""
    return places.named(users_frame(depth + 1))


def stdout_is_read() -> bool:
    """Return whether stdout still has a reader; `head`, for example, ends early."""
    poll = select.poll()
    poll.register(1, 0)
    return not poll.poll(0)  # polls for errors only
