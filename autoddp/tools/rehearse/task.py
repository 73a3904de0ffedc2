"""What a run is told, by the command that starts it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class RunTask:
    """What a run is told."""

    script: str
    args: tuple[str, ...]
    module: bool
    options: str
    root: str  # the folder in which it may do what it likes
    records: str
    kept: str
    recorder: str  # `package.module:function`, which is called before the script in each process of the run
    steps: int | None = None
    settings: dict[str, Any] = field(default_factory=dict)  # the recorder's own

    def to_json(self) -> str:
        """As text for a file."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, path: str) -> RunTask:
        """The inverse."""
        values = json.loads(Path(path).read_text())
        return cls(**values | {"args": tuple(values["args"])})
