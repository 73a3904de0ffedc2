"""A rank's private folder: the files of its own, and marks on names of the disk that it hides.

A file lies in `upper` under the full name that it has for the script. A mark is a plain file of
that name in `hidden`: what the disk has there, and below, is hidden. The folder is on the disk, so
the rank's threads and child processes see the same.
"""

from __future__ import annotations

import os
import posix
import stat

from autoddp.comm.place import HERE
from autoddp.effects import paths
from autoddp.report.temporary import temporary_folder

Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]


class Upper:
    """The private folder of a rank, which its threads and child processes share."""

    def __init__(self) -> None:
        self._folder: str | None = None
        self._lent = False  # whether another process removes it
        self._count = 0
        self._empty = True
        self.private: set[str] = set()  # temporary paths that libraries made for this rank alone

    # ---- the private folder

    def place(self) -> str:
        """Return the private folder, which need not be there yet; forks have the same."""
        if self._folder is None:
            name = f"autoddp-{int.from_bytes(posix.urandom(6)):012x}"
            self._folder = os.path.join(HERE.private or temporary_folder(), name)
        return self._folder

    def share(self, folder: str) -> None:
        """Use the private folder of the rank that has started this process."""
        self._folder, self._lent = folder, True

    def new(self, path: Path) -> str:
        """Return a path that nobody finds, with the same last part (names decide formats)."""
        self._count += 1
        folder = os.path.join(self.place(), f"{posix.getpid()}-{self._count}")
        paths.make_folders(folder)
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

    # ---- by full names

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

    def _upper(self, name: str) -> str:
        return f"{self.place()}/upper{name}".rstrip("/")

    def _hidden(self, name: str) -> str:
        return f"{self.place()}/hidden{name}".rstrip("/")

    def _hides(self, name: str) -> bool:
        """Return whether what the disk has under this name is hidden: a mark is a plain file."""
        try:
            return stat.S_ISREG(posix.lstat(self._hidden(name)).st_mode)
        except NotADirectoryError:
            return True  # one of the folders that it lies in is
        except OSError:
            return False

    def _hide(self, name: str) -> None:
        """Mark `name`: what the disk has there, and below, is hidden."""
        if not self._hides(name):
            paths.remove(mark := self._hidden(name))  # marks of what is below
            paths.make_folders(os.path.dirname(mark))
            posix.close(posix.open(mark, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))

    def _clear(self, name: str) -> None:
        """Make the entry disappear for this rank."""
        paths.remove(self._upper(name))
        if paths.seen(name, follow=False):
            self._hide(name)
