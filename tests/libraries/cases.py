"""What `cases.toml` says: a script of `scripts/` for each row, and how it is compared."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
TABLE, SCRIPTS = HERE / "cases.toml", HERE / "scripts"


@dataclass(frozen=True)
class Case:
    """A script on a library."""

    name: str  # of the script, without its ending
    package: str  # as pip calls it
    trains: str  # in a few words
    ranks: int = 2
    runs: int = 1  # one after the other in the same folder and home: a cache is cold, then warm
    rtol: float = 1e-9
    reason: str = ""  # why it is above that of float64, or why the script is not run at all
    run: bool = True
    arguments: tuple[str, ...] = ()
    ignore: dict[str, str] = field(default_factory=dict)  # patterns of files, each with its reason
    unlike: dict[str, str] = field(default_factory=dict)  # what two runs print in other words
    folder: Path = SCRIPTS

    @property
    def script(self) -> Path:
        return self.folder / f"{self.name}.py"

    @property
    def version(self) -> str | None:
        """The installed version, None if there is none."""
        try:
            return importlib.metadata.version(self.package)
        except importlib.metadata.PackageNotFoundError:
            return None


def cases() -> dict[str, Case]:
    """All rows of the table, in its order."""
    rows = tomllib.loads(TABLE.read_text())
    for row in rows.values():
        row["arguments"] = tuple(row.get("arguments", ()))
    return {name: Case(name, **row) for name, row in rows.items()}
