"""A folder that holds a recording: its names, how it is written, and how it is read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoddp.errors import BadInput

ABOUT, LINES = "recording.json", ".jsonl"
LOADING, GATHERING, GRADIENTS = "loading", "gathering", "gradients"
PARTS = (LOADING, GATHERING, GRADIENTS)  # of a step's time; the rest is computing
Entry = dict[str, Any]


@dataclass(frozen=True)
class About:
    """The lines that rank 0 writes of the run as a whole."""

    script: str
    arguments: list[str]
    module: bool
    view: str
    ranks: int
    exit: int | None  # the exit code, None if the script has not come to its end
    seconds: float


@dataclass(frozen=True)
class Recording:
    """The entries of each rank of a run, and how the run ended."""

    name: str  # what it is called where it is shown
    code: int | None  # the exit code of the script, None if it has not come to its end
    steps: dict[int, list[Entry]]  # by rank, an entry for each step
    ends: dict[int, Entry]  # by rank, the entry at the end, empty if the rank did not come to it
    seconds: float

    @property
    def raised(self) -> str:
        """Return the exception in which the script ended, in words; empty if in none."""
        found = (end["raised"] for end in self.ends.values() if end.get("raised"))
        return next(found, "") if self.code != 0 else ""


@dataclass(frozen=True)
class ReadRecording(Recording):
    """A recording that `autoddp run --record` made."""

    about: About

    def lacks(self) -> Iterator[str]:
        """Yield in words what a recording that is not whole lacks."""
        ranks = self.about.ranks
        if gone := [str(rank) for rank in range(ranks) if rank not in self.steps]:
            yield (
                f"{self.name} has {len(self.steps)} of {ranks} ranks: {', '.join(gone)} wrote on "
                "other nodes; copy their files to it"
            )
        if self.code is None:
            yield f"{self.name} has not ended: it is taken as far as it came"


def write(folder: str, name: str) -> int:
    """Open a file of a recording for writing, and return its descriptor.

    The script may have removed the folder meanwhile.
    """
    os.makedirs(folder, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    return os.open(os.path.join(folder, name), flags, 0o644)


def is_part(path: Path) -> bool:
    """Return whether a file is one of a recording, and not a user's own lines of JSON."""
    return path.name == ABOUT or (path.suffix == LINES and path.stem.isdecimal())


def entries(folder: Path) -> tuple[dict[int, list[Entry]], dict[int, Entry]]:
    """Read the steps and the ends of all ranks whose files are in the folder."""
    steps: dict[int, list[Entry]] = {}
    ends: dict[int, Entry] = {}
    for path in sorted(filter(is_part, folder.glob(f"*{LINES}"))):
        # a run that was killed may have left half a line
        lines = [json.loads(line) for line in path.read_text().split("\n")[:-1]]
        steps[int(path.stem)] = [line for line in lines if "step" in line]
        ends[int(path.stem)] = next((line for line in lines if "ended" in line), {})
    return steps, ends


def read(folder: str) -> ReadRecording:
    """Read a recording that `autoddp run --record` made.

    Raises:
        BadInput: There is none, or not the one of rank 0, or one of its files is broken.
    """
    where = Path(folder)
    missing = [name for name in (ABOUT, f"0{LINES}") if not (where / name).is_file()]
    if missing:
        raise BadInput(
            f"{folder} holds no recording (no {' and no '.join(missing)}); "
            f"autoddp run --record {folder} makes one"
        )
    try:
        about = About(**json.loads((where / ABOUT).read_text()))
        steps, ends = entries(where)
    except (OSError, ValueError, TypeError) as error:
        raise BadInput(
            f"{folder} is no whole recording ({error}); copy it again from where it was written, "
            "or record another"
        ) from None
    return ReadRecording(folder, about.exit, steps, ends, about.seconds, about)
