"""Where ranks above 0 write what rank 0 writes for real, and where they find it again."""

from __future__ import annotations

import os
import posix
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress

from autoddp.comm.place import HERE
from autoddp.effects import paths

GONE = ""  # where what this rank has removed lies


class Scratch:
    """A private folder, and which of the user's paths lie in it on this rank.

    The overlay maps the one name of what this rank wrote, made, renamed or removed to where it lies.
    """

    def __init__(self) -> None:
        self._folder: str | None = None
        self._owner = 0
        self._count = 0
        self.overlay: dict[str, str] = {}
        self._alive: dict[str, int] = {}  # descriptors of what has no name any more
        self.changed: set[str] | None = None  # with several nodes: what rank 0's disk has the truth about
        self.agreed: Callable[[str], None] = lambda path: None  # told what has come to be on the disk for all
        self.private: set[str] = set()  # what libraries on this rank made for themselves to be temporary

    def new(self, path: str) -> str:
        """A path of our own with the same last part (names decide formats)."""
        inside = self.ready()
        if self._owner != os.getpid():  # a process forked from this rank, and its equals
            self.below(inside)
        self._count += 1
        folder = os.path.join(self.ready(), str(self._count))
        posix.mkdir(folder)
        return os.path.join(folder, os.path.basename(path) or "_")

    def ready(self) -> str:
        """The private folder: made before a fork, so that who made it removes it."""
        if self._folder is None:
            self._owner, self._folder = os.getpid(), paths.fresh(HERE.private or tempfile.gettempdir())
        return self._folder

    def below(self, folder: str) -> None:
        """Lie in another's private folder, who removes it; what is found there already is read there."""
        self._owner, self._folder = os.getpid(), paths.fresh(folder)

    def holds(self, at: str) -> bool:
        """Whether it lies in the private folder; a child process's lies in its parent's."""
        return self._folder is not None and at.startswith(self._folder + "/")

    def alive(self, path: str) -> str:
        """Where a file on the disk can be read, even when rank 0 has removed it."""
        handle = posix.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        at = f"/proc/{posix.getpid()}/fd/{handle}"
        self._alive[at] = handle
        return at

    def let_go(self, at: str) -> None:
        """Nobody finds anything there any more."""
        if self.holds(at):
            paths.remove(at)
            with suppress(OSError):  # that it was made for; another may lie beside it
                posix.rmdir(os.path.dirname(at))
        elif at in self._alive:
            posix.close(self._alive.pop(at))

    def taken(self, top: str) -> dict[str, str]:
        """The entries below `top`, by the rest of their names; they are no longer in force."""
        names = [name for name in list(self.overlay) if name.startswith(top)]
        return {name[len(top) :]: self.overlay.pop(name) for name in names}

    @staticmethod
    def key(path: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> str:
        """One name for one file."""
        return os.path.realpath(os.fsdecode(path))

    @staticmethod
    def entry(path: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> str:
        """One name for one entry of a folder, which may be a link: removed, renamed as such."""
        folder, name = os.path.split(os.path.abspath(os.fsdecode(path)))
        return os.path.join(os.path.realpath(folder), name)

    def lay(self, path: str, at: str) -> None:
        """From now on `path` is found at `at`."""
        self.overlay[path] = at

    def drop(self, path: str) -> None:
        """`path`, and all below it, is what the disk says."""
        for key in list(self._below(path)):
            self.overlay.pop(key)
        self.show(path)
        if self.changed is not None:
            self.changed.add(path)

    def show(self, path: str) -> None:
        """`path` has come to be on the disk: neither it nor what it lies in is hidden."""
        self.agreed(path)
        while self.overlay and path != os.path.dirname(path):
            if self.overlay.get(path) == GONE:
                del self.overlay[path]
            path = os.path.dirname(path)

    def move(self, source: str, target: str) -> None:
        """`source`, and all below it, is now called `target`."""
        moved = {target + key[len(source) :]: self.overlay[key] for key in self._below(source)}
        self.drop(source)
        self.drop(target)
        self.overlay.update(moved)

    def remove(self) -> None:
        """Forget and delete everything."""
        self.overlay.clear()
        for handle in self._alive.values():
            posix.close(handle)
        self._alive.clear()
        if self._folder is not None:
            paths.remove(self._folder)
            self._folder = None

    def _below(self, path: str) -> Iterator[str]:
        return (k for k in list(self.overlay) if k == path or k.startswith(path.rstrip("/") + "/"))
