"""The options and the tables that `verify` and `bench` have in common."""

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
    """The options of both that `autoddp run` has not."""

    steps: int | None = None  # after which a run ends
    json: str | None = None

    def check(self, least: int, why: str) -> None:
        """Check that there are enough steps, and that the file can be made.

        Raises:
            BadInput: There are not, or it cannot.
        """
        if self.steps is not None and self.steps < least:
            raise BadInput(f"--steps is {self.steps}; {why}")
        check_folder("--json", self.json)

    def write(self, data: dict[str, Any]) -> None:
        """Write the results, if a file was given."""
        if self.json is not None:
            Path(self.json).write_text(json.dumps(data, indent=2))


def check_folder(name: str, path: str | None) -> None:
    """Check that the folder of a file exists that an option gives.

    Raises:
        BadInput: It does not.
    """
    folder = os.path.dirname(path or "")
    if folder and not os.path.isdir(folder):
        raise BadInput(f"{name} is {path}, but there is no folder {folder}; make it first")


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Align columns, the first to the left and numbers to the right."""
    first, *others = (max(map(len, column)) for column in zip(*rows, strict=True))
    return [
        "  ".join([row[0].ljust(first), *map(str.rjust, row[1:], others)]).rstrip() for row in rows
    ]
