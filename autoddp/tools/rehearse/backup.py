"""Collect what a run changed outside of its folder, and put back what was there before."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

JOURNAL = "journal.jsonl"  # its lines: a path, and where the copy of what was there is kept


def copy(path: str, to: str) -> None:
    """Copy a file, a link as a link, or a folder with all that it holds."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.copytree(path, to, symlinks=True)
    else:
        shutil.copy2(path, to, follow_symlinks=False)


def put_back(kept: Path, results: Path) -> list[str]:
    """Move what a run made outside of its folder to `results`, and put back what was there.

    Returns:
        The absolute paths of all that the run touched there.
    """
    journal = kept / JOURNAL
    entries = (
        [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []
    )
    for entry in entries:
        path = entry["path"]
        if os.path.lexists(path):
            collected = results / path.lstrip("/")
            collected.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(path, collected)
        if entry["kept"] is not None:
            copy(entry["kept"], path)
    return [entry["path"] for entry in entries]
