"""Where ranks above 0 write what rank 0 writes for real, and where they find it again."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator

from autoddp.place import HERE


class Scratch:
    """A private folder, and which of the user's paths lie in it on this rank.

    The overlay maps the real path of what this rank wrote to where it lies.
    """

    def __init__(self) -> None:
        self._folder: str | None = None
        self._owner = 0
        self._count = 0
        self.overlay: dict[str, str] = {}
        self.changed: set[str] | None = None  # with several nodes: what rank 0's disk has the truth about
        self.private: set[str] = set()  # what libraries on this rank made for themselves to be temporary

    def new(self, path: str) -> str:
        """A path of our own with the same last part (names decide formats)."""
        inside = self.ready()
        if self._owner != os.getpid():  # a process forked from this rank, and its equals
            self.below(inside)
        self._count += 1
        folder = os.path.join(self.ready(), str(self._count))
        os.mkdir(folder)
        return os.path.join(folder, os.path.basename(path) or "_")

    def ready(self) -> str:
        """The private folder: made before a fork, so that who made it removes it."""
        if self._folder is None:
            self._owner, self._folder = os.getpid(), tempfile.mkdtemp(prefix="autoddp-", dir=HERE.private)
        return self._folder

    def below(self, folder: str) -> None:
        """Lie in another's private folder, who removes it."""
        self._owner, self._folder = os.getpid(), tempfile.mkdtemp(dir=folder)

    def find(self, path: str | bytes | os.PathLike[str]) -> str | None:
        """Where this rank finds `path`, if not at `path`."""
        return self.overlay.get(self.key(path)) if self.overlay else None

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
        if self.changed is not None:
            self.changed.add(path)

    def move(self, source: str, target: str) -> None:
        """`source`, and all below it, is now called `target`."""
        moved = {target + key[len(source) :]: self.overlay[key] for key in self._below(source)}
        self.drop(source)
        self.drop(target)
        self.overlay.update(moved)

    def remove(self) -> None:
        """Forget and delete everything."""
        self.overlay.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _below(self, path: str) -> Iterator[str]:
        return (k for k in self.overlay if k == path or k.startswith(path.rstrip("/") + "/"))
