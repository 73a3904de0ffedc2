"""A folder that holds a recording: its names, how it is written, and how it is read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from autoddp.errors import BadInput
from autoddp.options import Options

ABOUT, REPORT, LINES = "recording.json", "report.json", ".jsonl"
AGAIN = "copy it again from where it was written, or record another"
# what is said of a run as a whole, and needed of it
SAID = {"script", "arguments", "options", "apart", "ranks", "nodes", "exit", "seconds"}
Entry = dict[str, Any]


@dataclass(frozen=True)
class RecordSettings:
    """The settings of a recorder: its folder, and what is written of each step."""

    folder: str = ""
    numbers: bool = True  # fingerprints of what was computed
    times: bool = True  # where the time went
    steps: int | None = None  # after which the script ends, None for all


@dataclass(frozen=True)
class Recording:
    """The entries of each rank of a run, and how the run ended."""

    name: str  # what it is called where it is shown
    code: int | None  # the exit code of the script, None if it has not come to its end
    steps: dict[int, list[Entry]]  # by rank, an entry for each step
    ends: dict[int, Entry]  # by rank, the entry at the end, empty if the rank did not come to it
    seconds: float = 0.0
    about: Entry = field(default_factory=dict)  # what rank 0 said of the run as a whole
    out: str = ""  # what was printed, where that was kept
    err: str = ""  # the same of stderr; else what the first rank that failed raised

    @property
    def options(self) -> Options:
        """Return the options of the run, without those that this version does not know."""
        known = {row.name for row in fields(Options)}
        asked = {name: value for name, value in self.about["options"].items() if name in known}
        return Options.from_json(json.dumps(asked))

    @property
    def times(self) -> dict[int, list[Entry]]:
        """Return by rank the times of each step that has some."""
        return {
            rank: [step["times"] for step in steps if "times" in step]
            for rank, steps in self.steps.items()
        }

    @property
    def raised(self) -> bool:
        """Return whether the script ended in an exception."""
        return self.code != 0 and any(end.get("raised") for end in self.ends.values())

    def lacks(self) -> Iterator[str]:
        """Yield in words what a recording that is not whole lacks."""
        ranks = self.about["ranks"]
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


def write_about(folder: str, about: Entry) -> None:
    """Write what is said of the run as a whole: all of it or, if it fails, what was there."""
    file = write(folder, f"{ABOUT}.part")
    os.write(file, json.dumps(about, indent=2).encode())
    os.close(file)
    os.replace(os.path.join(folder, f"{ABOUT}.part"), os.path.join(folder, ABOUT))


def is_there(folder: str) -> bool:
    """Return whether the folder holds a recording, or a part of one."""
    return any(name == ABOUT or _is_ranks(Path(name)) for name in os.listdir(folder))


def _is_ranks(path: Path) -> bool:
    """Return whether the file is one of a rank, and not a user's own lines of JSON."""
    return path.suffix == LINES and path.stem.isdecimal()


def entries(folder: Path) -> tuple[dict[int, list[Entry]], dict[int, Entry]]:
    """Read the steps and the ends of all ranks whose files are in the folder.

    Raises:
        BadInput: A file cannot be read, or a line is not what a recorder writes.
    """
    steps: dict[int, list[Entry]] = {}
    ends: dict[int, Entry] = {}
    for path in sorted(filter(_is_ranks, folder.glob(f"*{LINES}"))):
        # a run that was killed may have left half a line
        text = _text(path).split("\n")[:-1]
        lines = [_parsed(line, f"{path}, line {at}") for at, line in enumerate(text, 1)]
        mine = steps[int(path.stem)] = [line for line in lines if "step" in line]
        ends[int(path.stem)] = next((line for line in lines if "ended" in line), {})
        lost = next((at for at, line in enumerate(mine, 1) if line["step"] != at), None)
        if lost is not None:
            raise BadInput(f"{path} has no line of step {lost}; {AGAIN}")
    return steps, ends


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise BadInput(f"{path} cannot be read ({why}); {AGAIN}") from None


def _parsed(text: str, where: str) -> Entry:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise BadInput(f"{where} is {text[:40]!r}, which no recorder writes; {AGAIN}")
    return found


def read(folder: str) -> Recording:
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
    about = _parsed(_text(where / ABOUT), str(where / ABOUT))
    if lacks := sorted(SAID - set(about)):
        raise BadInput(f"{where / ABOUT} lacks {', '.join(lacks)}; {AGAIN}")
    steps, ends = entries(where)
    raised = next((end["raised"] for end in ends.values() if end.get("raised")), "")
    return Recording(folder, about["exit"], steps, ends, about["seconds"], about, err=raised)
