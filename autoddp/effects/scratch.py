"""The place where ranks above 0 write what rank 0 writes for real, and where they find it again."""

from __future__ import annotations

import json
import os
import posix
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from autoddp.comm.place import HERE
from autoddp.effects import paths
from autoddp.report.temporary import temporary_folder

GONE = ""  # where what this rank has removed lies
LOG = "processes"  # what each of a rank's processes found elsewhere: a file in the private folder


class Entries(dict[str, str]):
    """The places of the user's paths, each change of which is written down for other processes.

    Attributes:
        log: The descriptor of the file; each line is a process, a path and a place, or None.
    """

    log: int | None = None

    def __setitem__(self, path: str, at: str) -> None:
        super().__setitem__(path, at)
        self._tell(path, at)

    def __delitem__(self, path: str) -> None:
        super().__delitem__(path)
        self._tell(path, None)

    def pop(self, path: str, *default: Any) -> Any:
        """Remove a path; return its place."""
        if path in self:
            self._tell(path, None)
        return super().pop(path, *default)

    def take(self, path: str, at: str | None) -> None:
        """Change what another process has changed."""
        if at is None:
            super().pop(path, None)
        else:
            super().__setitem__(path, at)

    def _tell(self, path: str, at: str | None) -> None:
        if self.log is not None:
            posix.write(self.log, json.dumps([posix.getpid(), path, at]).encode() + b"\n")


class Scratch:
    """A private folder, and which of the user's paths lie in it on this rank.

    The overlay maps the one name of what this rank wrote, made, renamed or removed to its place.
    All processes of a rank have the same, as all see one disk without autoddp.
    """

    def __init__(self) -> None:
        self._folder: str | None = None
        self._made: list[str] = []  # folders to be that
        self._owner, self._lent = 0, False
        self._count = 0
        self.overlay = Entries()
        self._heard = 0  # bytes of the log
        # paths that the script's thread changed where ranks did not meet; other processes' of late;
        # other threads'
        self.mine: set[str] = set()
        self.heard: set[str] = set()
        self.apart: set[str] = set()
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
            made = paths.fresh(HERE.private or temporary_folder())
            self._made.append(made)  # another thread may be here, too: the first one's counts
            if self._made[0] != made:
                posix.rmdir(made)
            self._open_log(self._made[0])
            self._owner, self._folder = os.getpid(), self._made[0]
        return self._folder

    def below(self, folder: str) -> None:
        """Write to a new folder in another process's private `folder`, which that one removes.

        What is found in the other one's already is read there.
        """
        if self.overlay.log is None:
            self._open_log(folder)
        self.hear()
        self._owner, self._folder, self._lent = os.getpid(), paths.fresh(folder), True

    def _open_log(self, folder: str) -> None:
        how = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self.overlay.log = posix.open(f"{folder}/{LOG}", how, 0o600)

    def hear(self) -> None:
        """Take over what other processes of this rank have changed."""
        log, heard = self.overlay.log, self._heard
        if log is None or posix.fstat(log).st_size == heard:
            return
        data = posix.pread(log, posix.fstat(log).st_size - heard, heard)
        self._heard = heard + len(data)  # another thread may do just the same
        for process, path, at in map(json.loads, data.splitlines()):
            if process != posix.getpid():
                self.overlay.take(path, at)
                self.heard.add(path)

    def claim(self, path: str, by_script: bool) -> None:
        """Note whose entry this is: the script's own thread's, or another thread's."""
        (self.mine if by_script else self.apart).add(path)
        (self.apart if by_script else self.mine).discard(path)

    def own_up(self) -> None:
        """Count what other processes changed as this rank's own: rank 0's had the time for it."""
        self.mine |= self.heard
        self.heard.clear()

    def holds(self, at: str) -> bool:
        """Return whether `at` is in the private folder; a child process's is in its parent's."""
        folders = self._made[:1] if self._folder is None else [self._folder]  # its log comes first
        return any(at.startswith(folder + "/") for folder in folders)

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
        for top in paths.above(path):
            if self.holds(at := self.overlay.get(top, GONE)):  # a folder that this rank made
                paths.remove(at + path[len(top) :])
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
        for path, at in moved.items():
            self.overlay[path] = at

    def remove(self) -> None:
        """Forget and delete everything."""
        if self.overlay.log is not None:
            posix.close(self.overlay.log)
        self.overlay, self._heard = Entries(), 0
        for handle in self._alive.values():
            posix.close(handle)
        self._alive.clear()
        if self._folder is not None and not self._lent:
            paths.remove(self._folder)
        self._folder = None
        self._made.clear()

    def _below(self, path: str) -> Iterator[str]:
        return (k for k in list(self.overlay) if k == path or k.startswith(path.rstrip("/") + "/"))
