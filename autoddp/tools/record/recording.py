"""The files of a recording: each rank writes lines of JSON on the run, its steps and its end."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autoddp.errors import BadInput

LINES = ".jsonl"
LEAST = 2  # the fewest steps that can be measured, as the first one is not
LOADING, GATHERING, GRADIENTS = "loading", "gathering", "gradients"
PARTS = (LOADING, GATHERING, GRADIENTS)  # of the time of a step; the rest is computing
# the aspects of a step that are compared
LOSS, RATE, GRADIENT, PARAMETER = "loss", "learning rate", "gradient", "parameter"
GENERATOR = "generator"
Entry = dict[str, Any]


@dataclass(frozen=True)
class Recording:
    """The entries of all ranks of a run, and its end."""

    name: str
    code: int | None  # the exit code of the script, None if it did not end
    seconds: float
    about: Entry  # of rank 0
    steps: dict[int, list[Entry]] = field(default_factory=dict)  # by rank
    ends: dict[int, Entry] = field(default_factory=dict)  # by rank, empty if it did not end
    out: str = ""  # stdout
    err: str = ""
    folder: Path = Path()  # the run's copy of the current folder

    @property
    def raised(self) -> str:
        """Return the exception that ended the script as text; empty if none did."""
        raised = (end["raised"] for end in self.ends.values() if end.get("raised"))
        return next(raised, "") if self.code != 0 else ""


def is_part(path: Path) -> bool:
    """Return whether a file belongs to a recording, by its name."""
    return path.suffix == LINES and path.stem.isdecimal()


def read(where: Path, name: str, **known: Any) -> Recording:
    """Read a recording, which may be empty; `known` are further attributes."""
    steps: dict[int, list[Entry]] = {}
    ends: dict[int, Entry] = {}
    about: Entry = {}
    for path in sorted(filter(is_part, where.iterdir()), key=lambda path: int(path.stem)):
        # a run that was killed may have left half a line
        first, *lines = [json.loads(x) for x in path.read_text().split("\n")[:-1]] or [{}]
        about = first if path.stem == "0" else about
        steps[int(path.stem)] = [line for line in lines if "step" in line]
        ends[int(path.stem)] = next((line for line in lines if "ended" in line), {})
    end = ends.get(0, {})
    members = {"code": end.get("exit"), "seconds": end.get("seconds", 0.0)} | known
    return Recording(name, about=about, steps=steps, ends=ends, **members)


def read_whole(folder: str) -> Recording:
    """Read a recording that `autoddp run --record` made, of enough steps to measure.

    Raises:
        BadInput: There is no such recording, or a file is broken.
    """
    try:
        run = read(Path(folder), folder)
        complete = {"script", "view", "ranks"} <= run.about.keys()
        if complete and run.about["ranks"] == len(run.steps) and len(run.steps[0]) >= LEAST:
            return run
        why: object = f"it needs a file of each rank, with {LEAST} steps or more"
    except (OSError, ValueError, TypeError, AttributeError) as error:
        why = error
    raise BadInput(
        f"{folder} is not a complete recording ({why}); autoddp run --record {folder} makes one"
    )
