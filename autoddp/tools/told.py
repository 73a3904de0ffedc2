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
        """Check that so many steps say anything, and that the file can be made.

        Raises:
            BadInput: They do not, or it cannot.
        """
        if self.steps is not None and self.steps < least:
            raise BadInput(f"--steps is {self.steps}; {why}")
        folder = os.path.dirname(self.json or "")
        if folder and not os.path.isdir(folder):
            raise BadInput(f"--json is {self.json}, but there is no folder {folder}; make it first")

    def write(self, data: dict[str, Any]) -> None:
        """Write all that was found, if that is wanted."""
        if self.json is not None:
            Path(self.json).write_text(json.dumps(data, indent=2))


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Align columns, the first to the left and numbers to the right."""
    width = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width[k]) if k else cell.ljust(width[k]) for k, cell in enumerate(row)
        ).rstrip()
        for row in rows
    ]
