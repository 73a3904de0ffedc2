"""The file of --report: what ran, how it went, and all decisions with their reasons."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from autoddp.report import Report


def write(path: str, report: Report, ran: Sequence[str], about: Mapping[str, Any]) -> None:
    """Write the file, or say why that cannot be.

    Args:
        path: Where to.
        report: Decisions and times of this rank.
        ran: The script and its arguments; of a decorated call those of the process.
        about: What else is said of the run.
    """
    name, *arguments = ran
    versions = {package: _version(package) for package in ("autoddp", "torch")}
    versions["python"] = platform.python_version()
    text = report.to_json(versions=versions, script=name, arguments=arguments, **about)
    try:
        Path(path).write_text(text)
    except OSError as error:  # the script has ended, and its outcome is what counts
        report.say(f"--report: {path} cannot be written ({error.strerror})")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None  # a checkout that is not installed
