"""What a recorder is told: where to write, and what of each step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RecordSettings:
    """The settings of a recorder.

    Attributes:
        folder: The folder of the recording, in full.
        numbers: Whether fingerprints of what a step computed are written.
        times: Whether it is written where the time of a step went.
        steps: The number of steps after which the script ends, None for all.
    """

    folder: str = ""
    numbers: bool = True
    times: bool = True
    steps: int | None = None
