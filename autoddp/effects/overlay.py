"""The world as a rank above 0 sees it: as it was for one process here, and what this rank has done to it.

What a library does on such a rank is done in a private folder. `entries` maps a name to where its content
lies: there, at another name on the disk (it was renamed), or nowhere (it was removed). A folder made here
has all that is below it. Names that are not among them are what the disk says, or what it said before
rank 0 went ahead, see `Before`. Once rank 0 has come as far as this rank, the disk is the truth.
"""

from __future__ import annotations

import errno
import os
import posix
import threading
from contextlib import suppress
from typing import Any

from autoddp.effects import paths
from autoddp.effects.scratch import GONE, Scratch
from autoddp.effects.sight import FoundPath, Path, Sight, error


class Overlay(Sight):
    """What this rank changes for itself alone."""

    def __init__(self, scratch: Scratch) -> None:
        super().__init__(scratch)
        self.number = 0  # of effects, when entries were last held against the disk
        self._main = threading.get_ident()
        self._mine: set[str] = set()  # entries that the script's thread made where ranks did not meet
        scratch.agreed = self.agreed

    def to_write(self, path: Path, keep: bool, new: bool = False) -> str:
        """Where to write what is at `path`: a copy of it, if it is kept; a file of this rank's own.

        Raises:
            OSError: As the operating system would, where it may not be.
        """
        found = self.find(path)
        last = self.find(path, follow=False)
        if new and last.there and self._known(last):
            raise error(errno.EEXIST, path)
        if found.folder or (found.there and self.own(found)):
            return found.at
        at = self._place(found, path)
        if keep:
            self.bring(path, at)
        self.lay(found.name, at)
        return at

    def forget(self, path: Path) -> None:
        """What was to be written there was not: it is what it was."""
        found = self.find(path)
        if found.at and not found.there:
            self.scratch.overlay.pop(found.name, None)

    def bring(self, path: Path, at: str) -> None:
        """Copy what is at `path`, if it is a file, to `at`."""
        found = self.find(path)
        while found.there and paths.is_file(found.at):
            paths.copy(found.at, at)
            found, before = self.find(path), found
            if found.at == before.at:
                return  # else rank 0 has just changed what was copied

    def make(self, path: Path, mode: int) -> None:
        """A folder."""
        at = self._new(path)
        posix.mkdir(at[1], mode)
        self.lay(*at)

    def link_to(self, said: Path, path: Path) -> None:
        """A symbolic link."""
        at = self._new(path)
        posix.symlink(said, at[1])
        self.lay(*at)

    def special(self, path: Path, make: Any) -> None:
        """A pipe or a device, which `make` makes."""
        at = self._new(path)
        make(at[1])
        self.lay(*at)

    def link(self, source: Path, target: Path) -> None:
        """Another name for a file."""
        found = self._there(source)
        if found is None:
            return
        name, at = self._new(target)
        if self.own(found):
            posix.link(found.at, at)
        else:
            at = self._alive(source)
        self.lay(name, at)

    def remove(self, path: Path, tree: bool = False) -> None:
        """A file; or a folder with all that is in it."""
        found = self._there(path)
        if found is None:
            return
        if found.folder != tree:
            raise error(errno.ENOTDIR if tree else errno.EISDIR, path)
        self.clear(found)

    def remove_folder(self, path: Path) -> None:
        """A folder, which must be empty."""
        found = self._there(path)
        if found is None:
            return
        if not found.folder:
            raise error(errno.ENOTDIR, path)
        names = self.names(found.name)
        if posix.listdir(found.at) if names is None else names:
            raise error(errno.ENOTEMPTY, path)
        self.clear(found)

    def rename(self, source: Path, target: Path) -> None:
        """`source` and all below it is now called `target`."""
        found, other = self._there(source), self.find(target, follow=False)
        if found is None:  # rank 0 has done so already
            self.agreed(other.name)
            self.lay(other.name, other.name)
        if found is None or found.name == other.name:
            return
        folder = found.folder
        if folder and f"{other.name}/".startswith(found.name + "/"):
            raise error(errno.EINVAL, source)
        if other.there and f"{found.name}/".startswith(other.name + "/"):
            raise error(errno.ENOTEMPTY, source)
        if other.there and folder != other.folder:
            raise error(errno.ENOTDIR if folder else errno.EISDIR, target)
        if other.there and folder:
            self.remove_folder(target)
        place = self._place(other, target, new=True)
        below = self.scratch.taken(found.name + "/")
        self.scratch.taken(other.name + "/")
        at = self._moved(found, folder, place)
        self.clear(found, moved=True)
        self.lay(other.name, at)
        for rest, at in below.items():
            self.lay(f"{other.name}/{rest}", at)

    def room(self, path: Path) -> str:
        """A folder of this rank's own for new files of the folder `path`.

        Raises:
            OSError: There is no such folder.
        """
        found = self.find(os.path.join(self.find(path).name, "_"), follow=False)
        return os.path.dirname(self._place(found, path, new=True))

    def take(self, source: Path, target: Path) -> None:
        """`source`, which is on the disk and this rank's own, is now called `target`, which is not."""
        other = self.find(target, follow=False)
        at = self._place(other, target, new=True)
        posix.rename(source, at)
        self.lay(other.name, at)

    def _moved(self, found: FoundPath, folder: bool, place: str) -> str:
        """Where the content of what is renamed lies from now on."""
        if self.own(found):
            posix.rename(found.at, place)
            return place
        if folder:
            return self.scratch.overlay.get(found.name) or found.base or found.at
        said = paths.link(found.at)
        if said is None:
            return self._alive(found.name)
        posix.symlink(said, place)
        return place

    def _alive(self, path: Path) -> str:
        """Where a file of the disk can be read from now on, whatever rank 0 does to its name."""
        while True:
            found = self.find(path, follow=False)
            with suppress(FileNotFoundError):
                at = self.scratch.alive(found.at)
                if self.find(path, follow=False).at == found.at:
                    return at
                self.scratch.let_go(at)  # rank 0 has just changed it

    def clear(self, found: FoundPath, moved: bool = False) -> None:
        """Nothing is there any more."""
        name = found.name
        for at in [*self.scratch.taken(name + "/").values(), self.scratch.overlay.pop(name, GONE)]:
            self.scratch.let_go(at)  # what was moved is there no more
        self._mine.discard(name)
        folder = self.find(os.path.dirname(name))
        if folder.base is None:
            if not moved and self.own(found):
                paths.remove(found.at)
        elif self.find(name, follow=False).there:
            self.lay(name, GONE)

    def lay(self, name: str, at: str) -> None:
        """From now on `name` is found at `at`."""
        folder = self.find(os.path.dirname(name))
        if at and folder.base is None and at == f"{folder.at}/{os.path.basename(name)}":
            self.scratch.overlay.pop(name, None)  # it lies in a folder of this rank's own
            return
        before = self.scratch.overlay.get(name, at)
        self.scratch.lay(name, at)
        if before != at:
            self.scratch.let_go(before)
        if threading.get_ident() == self._main:
            self._mine.add(name)

    def _new(self, path: Path) -> tuple[str, str]:
        found = self.find(path, follow=False)
        if found.there and self._known(found):
            raise error(errno.EEXIST, path)
        return found.name, self._place(found, path, new=True)

    def _place(self, found: FoundPath, path: Path, new: bool = False) -> str:
        """Where something new is put; its folder must be there, and let rank 0 write, or its file must."""
        name = found.name
        folder = self.find(os.path.dirname(name))
        if not folder.there:
            raise error(errno.ENOENT, path)
        if not folder.folder:
            raise error(errno.ENOTDIR, path)
        if self.own(folder):
            return f"{folder.at}/{os.path.basename(name)}"
        if not posix.access(found.at if found.there and not new else folder.at, os.W_OK):
            raise error(errno.EACCES, path)
        return self.scratch.new(name)

    def _there(self, path: Path) -> FoundPath | None:
        """What is to be removed or renamed; None where rank 0 may have done so already."""
        found = self.find(path, follow=False)
        if found.there:
            return found
        if found.at == GONE:
            raise error(errno.ENOENT, path)
        if self.before is None:
            return None
        if threading.get_ident() == self._main or not self.before.taken(found.name):
            raise error(errno.ENOENT, path)
        self.lay(found.name, GONE)
        return None

    def _known(self, found: FoundPath) -> bool:
        """Whether it was there before; without a journal, rank 0 may just have made it."""
        return self.before is not None or self.own(found)

    # ---- what becomes of it

    def agreed(self, path: str) -> None:
        """The script has changed `path` on all ranks; a thread's folder that it lies in is for all, too."""
        self._mine.update(top for top in paths.above(path) if top in self.scratch.overlay)
        if self.before is not None:
            self.before.agreed(path)

    def settle(self, number: int) -> None:
        """Rank 0 has come through so many effects: what it has for real is no longer this rank's own."""
        if number == self.number:
            return
        self.number = number
        if self.before is not None:
            self.before.come(number)
        names = [name for name in self.scratch.overlay if name in self._mine]
        self._mine.intersection_update(names)
        if not names:
            return
        if self.before is not None:
            self.before.refresh()
        held = paths.held()
        for name in names:
            self._settle(name, self.scratch.overlay[name], held)

    def _base(self, name: str) -> tuple[str, bool]:
        base = name if self.before is None else self.before.resolve(name)
        return base, bool(base) and paths.seen(base, follow=False) is not None

    def _settle(self, name: str, at: str, held: set[str]) -> None:
        self.scratch.overlay.pop(name, None)
        base, there = self._still(lambda: self._base(name))
        own = self.scratch.holds(at)
        if at == GONE or not there:
            keep = there == (at == GONE)
        elif own and paths.is_folder(at) and paths.is_folder(base):
            for part in posix.listdir(at):
                self._settle(f"{name}/{part}", f"{at}/{part}", held)
            with suppress(OSError):  # what rank 0 does not have stays there
                posix.rmdir(at)
            self._mine.discard(name)
            return
        else:
            keep = at in held
        if keep:
            self.scratch.lay(name, at)
            self._mine.add(name)
        else:
            self._mine.discard(name)
            self.scratch.let_go(at)
