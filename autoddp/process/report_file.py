"""The file of --report: what ran, how it went, and all decisions with their reasons."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from autoddp import __version__
from autoddp.report import Report


def write(path: str, report: Report, ran: Sequence[str], about: Mapping[str, Any]) -> None:
    """Write the file, or say why that cannot be.

    Args:
        path: Where to.
        report: Decisions and times of this rank.
        ran: The script and its arguments; of a decorated call those of the process.
        about: More facts of the run.
    """
    name, *arguments = ran
    python = platform.python_version()
    versions = {"autoddp": __version__, "torch": torch.__version__, "python": python}
    text = report.to_json(versions=versions, script=name, arguments=arguments, **about)
    try:
        Path(path).write_text(text)
    except OSError as error:  # the script has ended, and its outcome is what counts
        report.say(f"--report: {path} cannot be written ({error.strerror})")
