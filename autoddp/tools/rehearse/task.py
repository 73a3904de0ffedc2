"""The task of a run, written by the command that starts the run."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class RunTask:
    """The task of a run: its script and options, and where and by what it is recorded."""

    script: str
    args: tuple[str, ...]
    module: bool
    options: str
    root: str  # the folder in which the run may do what it likes
    records: str
    kept: str
    recorder: str  # `package.module:function`, called before the script in each process of the run
    steps: int | None = None
    settings: dict[str, Any] = field(default_factory=dict)  # the recorder's own

    def to_json(self) -> str:
        """Write the task as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, path: str) -> RunTask:
        """Read what `to_json` wrote to the file at `path`."""
        values = json.loads(Path(path).read_text())
        return cls(**values | {"args": tuple(values["args"])})
