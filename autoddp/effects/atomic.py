"""Atomic file writes: a killed run leaves the old file or the new one, never half of one."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any

from autoddp.comm.place import HERE

REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR)


class Draft(AbstractContextManager["Draft"]):
    """A file that is written to a folder next to its target, under the same name, and then renamed.

    The end of the `with` statement removes a draft that was not put in place.

    The name is the target's because writers use it: for the format, for a suffix that they add,
    for the name of the folder inside a checkpoint's archive.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.folder, self.name = os.path.dirname(path), os.path.basename(path)
        self._scratch: str | None = None
        self._link: str | None = None  # with which the launcher removes the draft of a killed rank

    def write(self, save: Callable[[str], Any]) -> Any:
        """Call `save` with the path to write to; errors that it raises name the user's path."""
        try:
            scratch = self._make() if self._is_plain() else None
        except OSError as error:
            if error.errno not in REFUSED:
                raise OSError(error.errno, error.strerror, self.path) from None  # old file stays
            scratch = None
        if scratch is None:
            return save(self.path)  # a device, a file in a read-only folder, or an error
        try:
            result = save(os.path.join(scratch, self.name))
            for name in os.listdir(scratch):  # numpy adds a suffix
                _finish(os.path.join(scratch, name), os.path.join(self.folder, name))
        except BaseException as error:
            raise renamed(error, scratch, self.folder) from None
        return result

    def put(self) -> None:
        """Move the draft into place in one step."""
        if self._scratch is None:
            return
        try:
            for name in os.listdir(self._scratch):
                target = os.path.join(self.folder, name)
                os.replace(os.path.join(self._scratch, name), os.path.realpath(target))
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.path) from None

    def __exit__(self, *_: object) -> None:
        """Remove the draft and the launcher's link to it; a file that is in place stays."""
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
        if self._link is not None:
            with suppress(FileNotFoundError):
                os.unlink(self._link)

    def _make(self) -> str:
        """Make the folder next to the target, after the link with which the launcher finds it."""
        short = os.fsdecode(os.fsencode(self.name)[:200])  # file systems limit names to 255 bytes
        name = f".{short}.{time.monotonic_ns():x}"
        scratch = os.path.join(os.path.dirname(os.path.realpath(self.path)), name)
        if HERE.private is not None:
            link = os.path.join(HERE.private, name)
            with suppress(OSError):  # the launcher's disk may be full where the user's is not
                os.symlink(scratch, link)
                self._link = link
        os.mkdir(scratch, 0o700)
        self._scratch = scratch
        return scratch

    def _is_plain(self) -> bool:
        """Return whether a plain write would make or replace a regular file."""
        try:
            status = os.stat(self.path)
        except OSError:
            return bool(self.name)
        return stat.S_ISREG(status.st_mode) and os.access(self.path, os.W_OK)


def _finish(path: str, target: str) -> None:
    """Give `path` the permissions that a plain write would leave at `target`, and flush it."""
    if os.path.exists(target):
        os.chmod(path, stat.S_IMODE(os.stat(target).st_mode))
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def renamed(error: BaseException, scratch: str, folder: str) -> BaseException:
    """Return the error with the user's path in place of the draft's."""

    def users(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        value = value.replace(scratch + "/", folder + "/" if folder else "")
        return value.replace(scratch, folder or ".")

    if isinstance(error, OSError) and error.filename is not None:
        error.filename = users(error.filename)
    error.args = tuple(users(a) for a in error.args)
    return error
