"""Paths as the operating system sees them, by functions that nothing of ours replaces."""

from __future__ import annotations

import os
import posix
import stat
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

LONGEST = 4096  # bytes of a path, with the one that ends it, of which the kernel takes no more
LINKS = 40  # that are followed in one path, as the kernel does
PART = 1 << 26  # bytes that the kernel copies at once


def text(path: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> str:
    """Return the full path, its links not followed."""
    name = os.fsdecode(path)
    return os.path.normpath(name if name.startswith("/") else os.path.join(here(), name))


def whole(path: Any, folder: int | None) -> Any:
    """Return `path`, joined to the folder that descriptor `folder` has open, if one is given."""
    if folder is None or path is None:
        return path
    return os.path.join(os.fsdecode(posix.readlink(f"/proc/self/fd/{folder}")), os.fsdecode(path))


def here() -> str:
    """Return the current folder, or the root where it was removed: a script may use full paths."""
    try:
        return posix.getcwd()
    except FileNotFoundError:
        return "/"


def real(path: str | bytes | os.PathLike[str] | os.PathLike[bytes], follow: bool) -> str:
    """Return the one name of an entry: links to folders are followed, one at the end if asked."""
    parts, done, links = os.path.join(here(), os.fsdecode(path)).split("/")[::-1], "", 0
    while parts:
        part = parts.pop()
        if part == "..":
            done = os.path.dirname(done)
        elif part not in ("", "."):
            said = link(f"{done}/{part}") if follow or any(parts) else None
            links += said is not None
            if said is None or links > LINKS:
                done = f"{done}/{part}"
            else:
                parts += said.split("/")[::-1]
                done = "" if said.startswith("/") else done
    return done or "/"


def above(path: str) -> Iterator[str]:
    """Yield the folders that `path` lies in, from the nearest."""
    while (folder := os.path.dirname(path)) != path:
        yield folder
        path = folder


def link(path: str) -> str | None:
    """Return what a symbolic link says, if it is one; a process's descriptors are no links here."""
    if path.startswith("/proc/"):
        return None
    try:
        return os.fsdecode(posix.readlink(path))
    except OSError:
        return None


def seen(path: str, follow: bool = True) -> os.stat_result | None:
    """Return the status of what is at `path`, None if nothing is there."""
    try:
        return posix.stat(path) if follow or path.startswith("/proc/") else posix.lstat(path)
    except OSError:
        return None


def facts(path: str) -> list[int] | None:
    """Return the size and time by which ranks see that a file is one; None if it is gone.

    It may have been removed or renamed while it was open.
    """
    there = seen(path)
    return None if there is None else [there.st_size, there.st_mtime_ns]


def still_open() -> set[str]:
    """Return the paths of what this process has open."""
    found = set()
    for number in posix.listdir("/proc/self/fd"):
        with suppress(OSError):  # the descriptor that lists them
            found.add(posix.readlink(f"/proc/self/fd/{number}"))
    return found


def names(folder: str) -> list[str]:
    """Return the names in a folder, none if there is no such folder."""
    try:
        return posix.listdir(folder)
    except OSError:
        return []


def is_folder(path: str, follow: bool = False) -> bool:
    """Return whether `path` is a folder, or with `follow` a link to one."""
    there = seen(path, follow)
    return there is not None and stat.S_ISDIR(there.st_mode)


def is_file(path: str) -> bool:
    """Return whether `path` is a plain file, or a link to one."""
    there = seen(path) if path else None
    return there is not None and stat.S_ISREG(there.st_mode)


def copy(source: str, target: str, limit: int | None = None) -> None:
    """Copy a file, or its first `limit` bytes, with its permissions and times."""
    reader = posix.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        there = posix.fstat(reader)
        left = there.st_size if limit is None else limit
        writer = posix.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            while left > 0 and (done := posix.sendfile(writer, reader, None, min(left, PART))):
                left -= done
            posix.fchmod(writer, stat.S_IMODE(there.st_mode) | 0o600)
            posix.utime(writer, ns=(there.st_atime_ns, there.st_mtime_ns))
        finally:
            posix.close(writer)
    finally:
        posix.close(reader)


def fresh(folder: str) -> str:
    """Make a new folder in `folder` that nobody else reads, and return its path."""
    while True:
        path = os.path.join(folder, f"autoddp-{int.from_bytes(posix.urandom(6)):012x}")
        try:
            posix.mkdir(path, 0o700)
        except FileExistsError:
            continue
        return path


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
