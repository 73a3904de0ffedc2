"""The options and the table format that `verify` and `bench` share."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoddp.errors import BadInput


@dataclass(frozen=True, kw_only=True)
class ToolOptions:
    """The options of both commands that `autoddp run` does not have."""

    steps: int | None = None  # after which a run ends
    json: str | None = None

    def check(self, least: int, why: str) -> None:
        """Check the number of steps and the folder of `--json`.

        Raises:
            BadInput: There are fewer than `least` steps, or the folder does not exist.
        """
        if self.steps is not None and self.steps < least:
            raise BadInput(f"--steps is {self.steps}; {why}")
        check_folder("--json", self.json)

    def write(self, data: dict[str, Any]) -> None:
        """Write the results to the file of `--json`, if given."""
        if self.json is not None:
            Path(self.json).write_text(json.dumps(data, indent=2))


def check_folder(name: str, path: str | None) -> None:
    """Check that the folder of an option's file exists.

    Raises:
        BadInput: It does not exist.
    """
    folder = os.path.dirname(path or "")
    if folder and not os.path.isdir(folder):
        raise BadInput(f"{name} is {path}, but the folder {folder} does not exist; make it first")


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Align columns, the first to the left and numbers to the right."""
    first, *others = (max(map(len, column)) for column in zip(*rows, strict=True))
    return [
        "  ".join([row[0].ljust(first), *map(str.rjust, row[1:], others)]).rstrip() for row in rows
    ]
