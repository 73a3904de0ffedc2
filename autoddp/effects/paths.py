"""Paths as the operating system sees them, by functions that autoddp does not patch."""

from __future__ import annotations

import os
import posix
import stat
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

LINKS = 40  # the most links that are followed in one path, as in the kernel
PART = 1 << 26  # bytes that are copied at once


def text(path: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> str:
    """Return the full path, without following links."""
    name = os.fsdecode(path)
    return os.path.normpath(name if name.startswith("/") else os.path.join(here(), name))


def here() -> str:
    """Return the current folder, or the root if it was removed, as a script may use full paths."""
    try:
        return posix.getcwd()
    except FileNotFoundError:
        return "/"


def above(path: str) -> Iterator[str]:
    """Yield the folders above `path`, the nearest first."""
    while (folder := os.path.dirname(path)) != path:
        yield folder
        path = folder


def below(folder: str, name: str = "") -> Iterator[str]:
    """Yield the files below `folder`, as paths relative to it that begin with a slash."""
    for entry in entries(folder + name):
        if entry.is_dir(follow_symlinks=False):
            yield from below(folder, f"{name}/{entry.name}")
        else:
            yield f"{name}/{entry.name}"


def entries(folder: str) -> list[os.DirEntry[str]]:
    """Return the entries of a folder, none if there is no such folder."""
    try:
        return list(posix.scandir(folder))
    except OSError:
        return []


def link(path: str) -> str | None:
    """Return the target of a symbolic link, None for all else and for links in /proc."""
    if path.startswith("/proc/"):
        return None
    try:
        return os.fsdecode(posix.readlink(path))
    except OSError:
        return None


def seen(path: Any, follow: bool = True) -> os.stat_result | None:
    """Return the status of `path`, None if nothing is there."""
    try:
        return posix.stat(path, follow_symlinks=follow)
    except OSError:
        return None


def still_open() -> set[str]:
    """Return the paths of the files that this process has open."""
    names = set()
    for number in posix.listdir("/proc/self/fd"):
        with suppress(OSError):  # the descriptor of the listing itself
            names.add(posix.readlink(f"/proc/self/fd/{number}"))
    return names


def is_folder(path: str) -> bool:
    """Return whether `path` is a folder, and no link to one."""
    status = seen(path, follow=False)
    return status is not None and stat.S_ISDIR(status.st_mode)


def is_file(path: str) -> bool:
    """Return whether `path` is a plain file, or a link to one."""
    status = seen(path) if path else None
    return status is not None and stat.S_ISREG(status.st_mode)


def make_folders(path: str) -> None:
    """Make a private folder and its parents, if they do not exist."""
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
        status = posix.fstat(reader)
        writer = posix.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            while posix.sendfile(writer, reader, None, PART):
                pass
            posix.fchmod(writer, stat.S_IMODE(status.st_mode) | 0o600)
            posix.utime(writer, ns=(status.st_atime_ns, status.st_mtime_ns))
        finally:
            posix.close(writer)
    finally:
        posix.close(reader)


def remove(path: str) -> None:
    """Delete a file, or a folder with its content, if it exists."""
    if is_folder(path):
        for name in posix.listdir(path):
            remove(f"{path}/{name}")
        with suppress(OSError):
            posix.rmdir(path)
    else:
        with suppress(OSError):
            posix.unlink(path)
