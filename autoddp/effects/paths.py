"""Paths as the operating system sees them, by functions that nothing of ours replaces."""

from __future__ import annotations

import os
import posix
import stat
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

LINKS = 40  # that are followed in one path, as the kernel does
PART = 1 << 26  # bytes that the kernel copies at once


def text(path: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> str:
    """Return the full path, its links not followed."""
    name = os.fsdecode(path)
    return os.path.normpath(name if name.startswith("/") else os.path.join(here(), name))


def here() -> str:
    """Return the current folder, or the root where it was removed: a script may use full paths."""
    try:
        return posix.getcwd()
    except FileNotFoundError:
        return "/"


def above(path: str) -> Iterator[str]:
    """Yield the folders that `path` lies in, from the nearest."""
    while (folder := os.path.dirname(path)) != path:
        yield folder
        path = folder


def below(folder: str, name: str = "") -> Iterator[str]:
    """Yield the names of all that is in `folder` and its folders, each with a slash before it."""
    for entry in entries(folder + name):
        if entry.is_dir(follow_symlinks=False):
            yield from below(folder, f"{name}/{entry.name}")
        else:
            yield f"{name}/{entry.name}"


def entries(folder: str) -> list[os.DirEntry[str]]:
    """Return what is in a folder, nothing if there is no such folder."""
    try:
        return list(posix.scandir(folder))
    except OSError:
        return []


def link(path: str) -> str | None:
    """Return what a symbolic link says, if it is one; a process's descriptors are no links here."""
    if path.startswith("/proc/"):
        return None
    try:
        return os.fsdecode(posix.readlink(path))
    except OSError:
        return None


def seen(path: Any, follow: bool = True) -> os.stat_result | None:
    """Return the status of what is at `path`, None if nothing is there."""
    try:
        return posix.stat(path, follow_symlinks=follow)
    except OSError:
        return None


def still_open() -> set[str]:
    """Return the paths of what this process has open."""
    found = set()
    for number in posix.listdir("/proc/self/fd"):
        with suppress(OSError):  # the descriptor that lists them
            found.add(posix.readlink(f"/proc/self/fd/{number}"))
    return found


def is_folder(path: str) -> bool:
    """Return whether `path` is a folder, and no link to one."""
    there = seen(path, follow=False)
    return there is not None and stat.S_ISDIR(there.st_mode)


def is_file(path: str) -> bool:
    """Return whether `path` is a plain file, or a link to one."""
    there = seen(path) if path else None
    return there is not None and stat.S_ISREG(there.st_mode)


def make_folders(path: str) -> None:
    """Make a folder of this rank's own, with those that it lies in, as far as it is not there."""
    try:
        posix.mkdir(path, 0o700)
    except FileExistsError:
        pass
    except FileNotFoundError:
        make_folders(os.path.dirname(path))
        make_folders(path)


def copy(source: str, target: str) -> None:
    """Copy a file, with its permissions and times."""
    reader = posix.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        there = posix.fstat(reader)
        writer = posix.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            while posix.sendfile(writer, reader, None, PART):
                pass
            posix.fchmod(writer, stat.S_IMODE(there.st_mode) | 0o600)
            posix.utime(writer, ns=(there.st_atime_ns, there.st_mtime_ns))
        finally:
            posix.close(writer)
    finally:
        posix.close(reader)


def remove(path: str) -> None:
    """Delete a file, or a folder with all that is in it, as far as it is there."""
    if is_folder(path):
        for name in posix.listdir(path):
            remove(f"{path}/{name}")
        with suppress(OSError):
            posix.rmdir(path)
    else:
        with suppress(OSError):
            posix.unlink(path)
