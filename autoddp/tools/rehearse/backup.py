"""Collect what a run changed outside of its folder, and put back what was there before."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from autoddp.errors import AutoDDPError

JOURNAL = "journal.jsonl"  # its lines: a path, and where the copy of what was there is kept


def copy(path: str, to: str) -> None:
    """Copy a file, a link as a link, or a folder with all that it holds."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.copytree(path, to, symlinks=True)
    else:
        shutil.copy2(path, to, follow_symlinks=False)


@contextmanager
def uninterrupted(signals: Iterable[int]) -> Iterator[None]:
    """Let the first of these signals wait until the end."""
    came: list[int] = []
    before = {each: signal.signal(each, lambda n, _: came.append(n)) for each in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in came[:1]:
            signal.raise_signal(number)


def put_back(kept: Path, results: Path, rescue: Path) -> None:
    """Move what a run made outside of its folder to `results`, and put back what was there.

    Args:
        kept: The folder with the journal and the copies.
        results: The folder for what the run made, below its absolute path.
        rescue: The path that `kept` is moved to if not all of it can be put back.

    Raises:
        AutoDDPError: Something could not be put back, though all else was; it says where that is.
        OSError: All is as it was, but what the run made could not be moved.
    """
    journal = kept / JOURNAL
    # a line without an end is of a process that was killed before it changed anything
    lines = journal.read_text().split("\n")[:-1] if journal.exists() else []
    entries = [(entry["path"], entry["kept"]) for entry in map(json.loads, lines)]
    paths = {path for path, _ in entries}
    # All is moved before anything is put back. What lies in a folder of the journal moves with it.
    moves = (path for path in paths if not paths.intersection(map(str, Path(path).parents)))
    unmoved = _failures(lambda path: _move(path, results), ((path,) for path in moves))
    # Backwards: a folder was kept with what the run had changed in it by then, which is older in
    # the journal.
    lost = _failures(_restore, reversed(entries))
    if lost:
        kept.chmod(0o700)  # it leaves a folder that others cannot enter
        kept.rename(rescue)
        texts = (_told(path, was, why, rescue) for (path, was), why in lost)
        raise AutoDDPError("\n".join(texts))
    if unmoved:
        raise unmoved[0][1]


def _failures(
    act: Callable[..., None], calls: Iterable[tuple[Any, ...]]
) -> list[tuple[tuple[Any, ...], Exception]]:
    """Make all calls, and return those that failed: none keeps the others from being made."""
    failed = []
    for arguments in calls:
        try:
            act(*arguments)
        except Exception as error:
            failed.append((arguments, error))
    return failed


def _move(path: str, results: Path) -> None:
    """Move what is at the path, if anything is, below `results`."""
    if os.path.lexists(path):
        collected = results / path.lstrip("/")
        collected.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(path, collected)


def _restore(path: str, kept: str | None) -> None:
    """Make the path hold a copy of what was kept of it, or nothing."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)
    if kept is not None:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        copy(kept, path)


def _told(path: str, kept: str | None, why: Exception, rescue: Path) -> str:
    if kept is None:
        return f"{path} could not be removed, and was not there before: {why}"
    at = rescue / os.path.basename(kept)
    return f"{path} could not be put back as it was; its copy is {at}: {why}"
