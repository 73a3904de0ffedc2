"""A rank's private folder: the files of its own, and marks on names of the disk that it hides.

A file lies in `upper` under the full name that it has for the script. A mark is a plain file of
that name in `hidden`: what the disk has there, and below, is hidden.
"""

from __future__ import annotations

import os
import posix
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, LOCK_SH, flock

from autoddp.comm.place import HERE
from autoddp.effects import paths
from autoddp.report.temporary import temporary_folder


class Upper:
    """The private folder of a rank, which its threads and child processes share."""

    def __init__(self) -> None:
        self._folder: str | None = None
        self._made: list[str] = []  # folders to be that
        self._lent = False  # whether another process removes it
        self._count = 0
        self._empty = True
        self.private: set[str] = set()  # temporary paths that libraries made for this rank alone

    def ready(self) -> str:
        """Return the private folder, made before a fork, so that who made it removes it."""
        if self._folder is None:
            made = paths.fresh(HERE.private or temporary_folder())
            self._made.append(made)  # another thread may be here, too: the first one's counts
            if self._made[0] != made:
                posix.rmdir(made)
            self._folder = self._made[0]
        return self._folder

    def share(self, folder: str) -> None:
        """Use the private folder of the rank that has started this process."""
        self._folder, self._lent = folder, True

    def new(self, path: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> str:
        """Return a path that nobody finds, with the same last part (names decide formats)."""
        self._count += 1
        folder = os.path.join(self.ready(), f"{posix.getpid()}-{self._count}")
        posix.mkdir(folder, 0o700)
        return os.path.join(folder, os.path.basename(os.fsdecode(path)) or "_")

    def holds(self, at: str) -> bool:
        """Return whether `at` is in the private folder."""
        return self._folder is not None and at.startswith(self._folder + "/")

    def idle(self) -> bool:
        """Return whether nothing was ever written: everything is where its name says."""
        if self._empty and self._folder is not None:
            self._empty = not any(
                paths.is_folder(f"{self._folder}/{top}") for top in ("upper", "hidden")
            )
        return self._empty

    def end(self) -> None:
        """Forget everything, and delete the private folder."""
        if self._folder is not None and not self._lent:
            paths.remove(self._folder)
        self._folder, self._empty = None, True
        self._made.clear()

    # ---- what rank 0 has done for all

    def drop(self, name: str) -> None:
        """Delete what this rank has under `name`: rank 0 has changed it, the disk has the truth."""
        if self.idle():
            return
        paths.remove(self._upper(name))
        paths.remove(self._hidden(name))
        for top in paths.above(name):
            if self._hides(top) and paths.is_folder(top):
                paths.remove(self._hidden(top))

    def move(self, source: str, target: str) -> None:
        """Follow a rename by rank 0; what this rank still writes there goes along.

        So does what rank 0 has under another name, as of a name with a process's number.
        """
        if self.idle():
            return
        self.drop(target)
        own = self._upper(source)
        used = any(f"{at}/".startswith(f"{own}/") for at in paths.still_open())
        if paths.seen(own, follow=False) and (used or not paths.seen(target, follow=False)):
            posix.rename(own, self._above(target))
        self.drop(source)

    def settle(self) -> None:
        """Delete what rank 0 has done as well, but for what is still open here."""
        if not self.idle():
            with self.locked(LOCK_EX):
                held = paths.still_open()
                self._settle(self._upper(""), "", held)
                self._settle_marks(self._hidden(""), "")

    @contextmanager
    def locked(self, how: int = LOCK_SH) -> Iterator[None]:
        """Have no process of this rank settle between a look for a file here and its opening."""
        handle = posix.open(self.ready(), os.O_RDONLY | os.O_CLOEXEC)
        try:
            flock(handle, how)
            yield
        finally:
            posix.close(handle)

    def _settle(self, upper: str, name: str, held: set[str]) -> None:
        for part in paths.names(upper):
            at, below = f"{upper}/{part}", f"{name}/{part}"
            if paths.is_folder(at):
                self._settle(at, below, held)
                with suppress(OSError):  # what rank 0 does not have stays there
                    posix.rmdir(at)
            elif at not in held and paths.seen(below, follow=False) is not None:
                paths.remove(at)

    def _settle_marks(self, hidden: str, name: str) -> None:
        for part in paths.names(hidden):
            at, below = f"{hidden}/{part}", f"{name}/{part}"
            if paths.is_folder(at):
                self._settle_marks(at, below)
            elif paths.seen(below, follow=False) is None or self._is_made_anew(below):
                paths.remove(at)

    def _is_made_anew(self, name: str) -> bool:
        return paths.seen(self._upper(name), follow=False) is None and paths.is_folder(name)

    # ---- by full names

    def alias(self, name: str, at: str) -> None:
        """Have this rank find as `name` what lies at `at`, if nothing has that name."""
        if paths.seen(name, follow=False) is None:
            paths.remove(self._upper(name))
            posix.symlink(at, self._above(name))

    def _at(self, name: str) -> tuple[str, bool]:
        """Return where the entry of this full name lies ("" if hidden), and if that is above."""
        if self.idle():
            return name, False
        upper, hides = self._upper(name), self._hides(name)
        there = paths.seen(upper, follow=False)
        if there is None:
            return ("" if hides else name), False
        if not hides and stat.S_ISDIR(there.st_mode) and paths.is_folder(name):
            return name, False  # of both: the upper one is there for what is below it
        return upper, True

    def _hides(self, name: str) -> bool:
        """Return whether what the disk has under this name is hidden: a mark is a plain file."""
        try:
            return stat.S_ISREG(posix.lstat(self._hidden(name)).st_mode)
        except NotADirectoryError:
            return True  # one of the folders that it lies in is
        except OSError:
            return False

    def _upper(self, name: str) -> str:
        return f"{self._folder}/upper{name}".rstrip("/")

    def _hidden(self, name: str) -> str:
        return f"{self._folder}/hidden{name}".rstrip("/")

    def _above(self, name: str) -> str:
        """Return the place of `name` in the upper folder, the folders above it made."""
        self.ready()
        return self._with_folders(self._upper(name))

    def _hide(self, name: str) -> None:
        """Mark `name`: what the disk has there, and below, is hidden."""
        self.ready()
        if self._hides(name):
            return
        mark = self._with_folders(self._hidden(name))
        paths.remove(mark)  # marks of what is below
        posix.close(posix.open(mark, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))

    def _with_folders(self, path: str) -> str:
        """Make the folders of the private one that `path` lies in; return it."""
        for top in [*paths.above(path)][::-1]:
            if len(top) > len(str(self._folder)):
                with suppress(FileExistsError):
                    posix.mkdir(top, 0o700)
        return path
