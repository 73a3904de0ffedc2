"""The disk as a rank above 0 sees it: as it was for one process, with this rank's own changes.

What a library does on such a rank is done in a private folder. `Scratch.overlay` maps a name to
where its content lies: there, at another name on the disk (it was renamed), or nowhere (it was
removed). A folder made here has all that is below it. Other names are what the disk says, or what
it said before rank 0 went ahead, see `Past`. Once rank 0 is as far as this rank, it is the truth.
"""

from __future__ import annotations

import errno
import os
import posix
from contextlib import suppress
from typing import Any

from autoddp.comm.context import Context
from autoddp.effects import paths
from autoddp.effects.scratch import GONE, Scratch
from autoddp.effects.sight import FoundPath, Path, Sight, error


class Overlay(Sight):
    """The changes to the disk that this rank makes for itself alone."""

    def __init__(self, scratch: Scratch, context: Context) -> None:
        super().__init__(scratch)
        self._context = context
        self.number = 0  # of effects, when entries were last compared with the disk
        scratch.met = self.met

    def to_write(self, path: Path, keep: bool, new: bool = False) -> str:
        """Return where to write what is at `path`: a file of this rank's own, a copy if `keep`.

        Raises:
            OSError: The operating system would raise it for a write to `path`, too.
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
        """Undo `to_write` for `path`, where nothing was written after all."""
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
        """Make the folder `path`."""
        at = self._new(path)
        posix.mkdir(at[1], mode)
        self.lay(*at)

    def link_to(self, said: Path, path: Path) -> None:
        """Make `path` a symbolic link that says `said`."""
        at = self._new(path)
        posix.symlink(said, at[1])
        self.lay(*at)

    def special(self, path: Path, make: Any) -> None:
        """Make `path` a pipe or a device, by calling `make` with a place for it."""
        at = self._new(path)
        make(at[1])
        self.lay(*at)

    def link(self, source: Path, target: Path) -> None:
        """Give the file `source` the other name `target`."""
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
        """Remove a file; with `tree`, a folder with all that is in it."""
        found = self._there(path)
        if found is None:
            return
        if found.folder != tree:
            raise error(errno.ENOTDIR if tree else errno.EISDIR, path)
        self.clear(found)

    def remove_folder(self, path: Path) -> None:
        """Remove a folder, which must be empty."""
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
        """Rename `source`, with all below it, to `target`."""
        found, other = self._there(source), self.find(target, follow=False)
        if found is None:  # rank 0 has done so already
            self._for_all(other.name)
            if self.before is not None:
                self.before.shared(other.name)
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
        """Return a folder of this rank's own for new files of the folder `path`.

        Raises:
            OSError: There is no such folder.
        """
        found = self.find(os.path.join(self.find(path).name, "_"), follow=False)
        return os.path.dirname(self._place(found, path, new=True))

    def take(self, source: Path, target: Path) -> None:
        """Move `source`, a real file of this rank's own, to `target`, which is not on the disk."""
        other = self.find(target, follow=False)
        at = self._place(other, target, new=True)
        posix.rename(source, at)
        self.lay(other.name, at)

    def _moved(self, found: FoundPath, folder: bool, place: str) -> str:
        """Return where a renamed entry's content lies from now on; move what is this rank's own."""
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
        """Return where a file of the disk stays readable, whatever rank 0 does to its name."""
        while True:
            found = self.find(path, follow=False)
            with suppress(FileNotFoundError):
                at = self.scratch.alive(found.at)
                if self.find(path, follow=False).at == found.at:
                    return at
                self.scratch.let_go(at)  # rank 0 has just changed it

    def clear(self, found: FoundPath, moved: bool = False) -> None:
        """Make `found` disappear for this rank; content that was `moved` is not deleted."""
        name = found.name
        for at in [*self.scratch.taken(name + "/").values(), self.scratch.overlay.pop(name, GONE)]:
            self.scratch.let_go(at)  # what was moved is there no more
        self.scratch.mine.discard(name)
        folder = self.find(os.path.dirname(name))
        if folder.base is None:
            if not moved and self.own(found):
                paths.remove(found.at)
        elif self.find(name, follow=False).there:
            self.lay(name, GONE)

    def lay(self, name: str, at: str) -> None:
        """Record that `name` is found at `at` from now on."""
        folder = self.find(os.path.dirname(name))
        if at and folder.base is None and at == f"{folder.at}/{os.path.basename(name)}":
            self.scratch.overlay.pop(name, None)  # it lies in a folder of this rank's own
            return
        before = self.scratch.overlay.get(name, at)
        self.scratch.lay(name, at)
        if before != at:
            self.scratch.let_go(before)
        self.scratch.claim(name, self._context.on_script_thread())

    def _new(self, path: Path) -> tuple[str, str]:
        found = self.find(path, follow=False)
        if found.there and self._known(found):
            raise error(errno.EEXIST, path)
        return found.name, self._place(found, path, new=True)

    def _place(self, found: FoundPath, path: Path, new: bool = False) -> str:
        """Return where to put something new; its folder must be there, and rank 0 may write."""
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
        """Find what is to be removed or renamed; None where rank 0 may have done so already."""
        found = self.find(path, follow=False)
        if found.there:
            return found
        if found.at == GONE:
            raise error(errno.ENOENT, path)
        if self.before is None:
            return None
        if self._context.on_script_thread() or not self.before.taken(found.name):
            raise error(errno.ENOENT, path)
        self.lay(found.name, GONE)
        return None

    def _known(self, found: FoundPath) -> bool:
        """Return whether the entry was there before; without a journal, rank 0 may be its maker."""
        return self.before is not None or self.own(found)

    def met(self, path: str) -> None:
        """Note that the script has just changed `path` on all ranks, which met for it."""
        self._for_all(path)
        if self.before is not None:
            self.before.met(path)

    def _for_all(self, path: str) -> None:
        """Take the threads' folders above `path` for the script's: they are for all ranks."""
        self.scratch.mine.update(top for top in paths.above(path) if top in self.scratch.overlay)

    def settle(self, number: int) -> None:
        """Give up this rank's own entries that rank 0, after `number` effects, has for real."""
        if number == self.number:
            return
        self.number = number
        if self.before is not None:
            self.before.come(number)
        names = [name for name in self.scratch.overlay if name in self.scratch.mine]
        self.scratch.mine.intersection_update(names)
        self.scratch.own_up()
        if not names:
            return
        if self.before is not None:
            self.before.refresh()
        held = paths.still_open()
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
            self.scratch.mine.discard(name)
            return
        else:
            keep = at in held
        if keep:
            self.scratch.lay(name, at)
            self.scratch.mine.add(name)
        else:
            self.scratch.mine.discard(name)
            self.scratch.let_go(at)
