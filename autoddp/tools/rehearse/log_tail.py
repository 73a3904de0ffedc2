"""The last lines of what a run that failed has said, for the user to see."""

from __future__ import annotations

import re

from autoddp.report import INSTALLED

TAIL = 12  # lines of a failure that are shown
REPORTED = re.compile(  # lines that are no errors
    r"\[autoddp\] (nothing is sharded|fetching|gathers|\d+ ranks on"
    r"|waiting for (\d+|nodes?|ranks?)|\w+ at \S+: (batches of|learning rate))\b"
    r"|\[W\S+ \S+ socket\.cpp"  # torch's own, on nodes without DNS names
)


def tail(text: str) -> list[str]:
    """Cut a text to the last lines of what went wrong, without the frames of libraries."""
    kept: list[str] = []
    library = False
    for line in text.rstrip().splitlines():
        if line.startswith("  File "):
            library = any(part in line for part in INSTALLED)
        if not (library and line.startswith("  ")) and not REPORTED.match(line):
            kept.append(line)
    return kept[-TAIL:]
