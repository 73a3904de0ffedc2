"""The place where ranks above 0 write what rank 0 writes for real, and where they find it again."""

from __future__ import annotations

import os
import posix
from collections.abc import Callable, Iterator
from contextlib import suppress

from autoddp.comm.place import HERE
from autoddp.effects import paths
from autoddp.report.temporary import temporary_folder

GONE = ""  # where what this rank has removed lies


class Scratch:
    """A private folder, and which of the user's paths lie in it on this rank.

    The overlay maps the one name of what this rank wrote, made, renamed or removed to its place.
    """

    def __init__(self) -> None:
        self._folder: str | None = None
        self._owner = 0
        self._count = 0
        self.overlay: dict[str, str] = {}
        self._alive: dict[str, int] = {}  # descriptors of what has no name any more
        # with several nodes: the paths about which rank 0's disk has the truth
        self.changed: set[str] | None = None
        # told each path that has come to be on the disk for all
        self.met: Callable[[str], None] = lambda path: None
        # temporary paths that libraries on this rank made for themselves
        self.private: set[str] = set()

    def new(self, path: str) -> str:
        """Return a new path of this rank's own with the same last part (names decide formats)."""
        inside = self.ready()
        if self._owner != os.getpid():  # in a process forked from this rank
            self.below(inside)
        self._count += 1
        folder = os.path.join(self.ready(), str(self._count))
        posix.mkdir(folder)
        return os.path.join(folder, os.path.basename(path) or "_")

    def ready(self) -> str:
        """Return the private folder, made before a fork, so that who made it removes it."""
        if self._folder is None:
            self._owner, self._folder = (
                os.getpid(),
                paths.fresh(HERE.private or temporary_folder()),
            )
        return self._folder

    def below(self, folder: str) -> None:
        """Write to a new folder in another process's private `folder`, which that one removes.

        What is found in the other one's already is read there.
        """
        self._owner, self._folder = os.getpid(), paths.fresh(folder)

    def holds(self, at: str) -> bool:
        """Return whether `at` is in the private folder; a child process's is in its parent's."""
        return self._folder is not None and at.startswith(self._folder + "/")

    def alive(self, path: str) -> str:
        """Open a file of the disk; return where it can be read even after rank 0 removes it."""
        handle = posix.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        at = f"/proc/{posix.getpid()}/fd/{handle}"
        self._alive[at] = handle
        return at

    def let_go(self, at: str) -> None:
        """Delete or close what is at `at`, where nobody finds anything any more."""
        if self.holds(at):
            paths.remove(at)
            with suppress(OSError):  # the folder made for it; another may lie beside
                posix.rmdir(os.path.dirname(at))
        elif at in self._alive:
            posix.close(self._alive.pop(at))

    def taken(self, top: str) -> dict[str, str]:
        """Remove the entries below `top`, and return them by the rest of their names."""
        names = [name for name in list(self.overlay) if name.startswith(top)]
        return {name[len(top) :]: self.overlay.pop(name) for name in names}

    def lay(self, path: str, at: str) -> None:
        """Record that `path` is found at `at` from now on."""
        self.overlay[path] = at

    def drop(self, path: str) -> None:
        """Delete the entries of `path`, and of all below it: they are what the disk says."""
        for key in list(self._below(path)):
            self.let_go(self.overlay.pop(key))
        self.show(path)
        if self.changed is not None:
            self.changed.add(path)

    def show(self, path: str) -> None:
        """Note that `path` is on the disk now: neither it nor what it lies in is hidden."""
        self.met(path)
        while self.overlay and path != os.path.dirname(path):
            if self.overlay.get(path) == GONE:
                del self.overlay[path]
            path = os.path.dirname(path)

    def move(self, source: str, target: str) -> None:
        """Rename the entries of `source`, and of all below it, to `target`."""
        below = list(self._below(source))
        moved = {target + key[len(source) :]: self.overlay.pop(key) for key in below}
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
