"""Write a file so that a killed run leaves the old one or the new one, never half of one."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from autoddp.comm.place import HERE


class Draft:
    """A file that was written beside its place, under the same name, and waits to be put there.

    The name stays because writers look at it: for the format, for a suffix to add, for the name
    of the folder inside a checkpoint's archive. With `keep`, the draft begins with a copy of the
    file that is there.
    """

    def __init__(self, path: str, keep: bool = False) -> None:
        self.path, self._keep = path, keep
        self.folder, self.name = os.path.dirname(os.path.realpath(path)), os.path.basename(path)
        self.targets = [path]  # what is put in place: numpy adds a suffix
        self._beside: str | None = None
        self._link: str | None = None  # tells the launcher of the draft, should we be killed

    def write(self, save: Callable[[str], Any]) -> Any:
        """Call `save` with the path to write to; errors that it raises name the user's path."""
        if not self._has_a_place():
            return save(self.path)  # a device, or an error that `save` itself words best
        try:
            self._make()
        except OSError as error:
            self.discard()
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                return save(self.path)  # a file that may be written in a folder that may not
            raise OSError(error.errno, error.strerror, self.path) from None  # the old file stays
        assert self._beside is not None
        try:
            if self._keep and os.path.exists(self.path):  # it will be added to
                shutil.copyfile(self.path, os.path.join(self._beside, self.name))
            result = save(os.path.join(self._beside, self.name))
            self.targets = [
                os.path.join(os.path.dirname(self.path), n) for n in os.listdir(self._beside)
            ]
            for name in os.listdir(self._beside):
                _settle(os.path.join(self._beside, name), self._target(name))
        except BaseException as error:
            beside = self._beside
            self.discard()
            raise renamed(error, beside, os.path.dirname(self.path)) from None
        return result

    def put(self) -> None:
        """Move the draft into place, at once for everybody who looks."""
        if self._beside is None:
            return
        try:
            for name in os.listdir(self._beside):
                os.replace(os.path.join(self._beside, name), self._target(name))
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.path) from None
        finally:
            self.discard()

    def discard(self) -> None:
        """Remove the draft and the launcher's link to it; leave the file that is in place."""
        if self._beside is not None:
            shutil.rmtree(self._beside, ignore_errors=True)
            self._beside = None
        self._unlink()

    def _make(self) -> None:
        """Make the folder beside the target; the launcher is told of it before it is there."""
        while True:
            name = f".{_short(self.name)}.{time.monotonic_ns():x}"
            self._beside = os.path.join(self.folder, name)
            try:
                self._tell(name)
                os.mkdir(self._beside, 0o700)
            except FileExistsError:  # another process's: it is left alone
                self._beside = None
                self._unlink()
            else:
                return

    def _tell(self, name: str) -> None:
        if HERE.private is None:
            return
        link = os.path.join(HERE.private, name)
        with suppress(OSError):  # the launcher's disk may be full where the user's is not
            os.symlink(self._beside or "", link)
            self._link = link

    def _unlink(self) -> None:
        if self._link is not None:
            with suppress(FileNotFoundError):
                os.unlink(self._link)
            self._link = None

    def _target(self, name: str) -> str:
        return os.path.realpath(os.path.join(os.path.dirname(self.path), name))

    def _has_a_place(self) -> bool:
        """Return whether a plain write would make or replace a regular file here."""
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            return os.path.isdir(self.folder) and bool(self.name)
        except OSError:
            return False
        return stat.S_ISREG(there.st_mode) and os.access(self.path, os.W_OK)


def _short(name: str) -> str:
    """Cut `name` to leave room for more within the length that a file name may have."""
    return os.fsdecode(os.fsencode(name)[:200])


def _settle(path: str, target: str) -> None:
    """Give `path` the permissions that a plain write would leave at `target`, and flush it."""
    if os.path.exists(target):
        os.chmod(path, stat.S_IMODE(os.stat(target).st_mode))
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def renamed(error: BaseException, beside: str, folder: str) -> BaseException:
    """Return the error with the user's path in place of the draft's."""

    def users(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        value = value.replace(beside + "/", folder + "/" if folder else "")
        return value.replace(beside, folder or ".")

    if isinstance(error, OSError) and error.errno is not None:
        if error.filename is not None:  # where it is None, setting it would change the message
            error.filename = users(error.filename)
        return error
    error.args = tuple(users(a) for a in error.args)
    return error
