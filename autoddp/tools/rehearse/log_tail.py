"""How a run that failed ended."""

from __future__ import annotations

import re

from autoddp.report import INSTALLED

TAIL = 12  # lines of a failure that are shown
REPORTED = re.compile(  # no error
    r"\[autoddp\] (nothing is split|fetching|split|by its parts|gathered|\d+ ranks on|waiting for \d+ nodes"
    r"|\w+ at \S+: (batches of|learning rate))\b"
    r"|\[W\S+ \S+ socket\.cpp"  # torch's, on nodes without names
)


def tail(text: str) -> list[str]:
    """The end of what went wrong, without the frames of libraries."""
    kept: list[str] = []
    library = False
    for line in text.rstrip().splitlines():
        if line.startswith("  File "):
            library = any(part in line for part in INSTALLED)
        if not (library and line.startswith("  ")) and not REPORTED.match(line):
            kept.append(line)
    return kept[-TAIL:]
