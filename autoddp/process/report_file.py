"""The file of --report: what ran, how it went, and all decisions with their reasons."""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from autoddp.comm.world import World
from autoddp.options import Options
from autoddp.report import Report


def write(
    report: Report,
    options: Options,
    world: World,
    nodes: int,
    backend: str,
    script: Sequence[str] = (),
    code: int | None = None,
) -> None:
    """Write the file on rank 0, if it is wanted.

    Args:
        report: Decisions and times of this rank.
        options: The options of the run.
        world: Place of this rank.
        nodes: Number of nodes.
        backend: Name of the backend.
        script: The script and its arguments; of a decorated call those of the process.
        code: Exit code, None of a decorated call, which has none.
    """
    if world.rank or options.report is None:
        return
    name, *arguments = script or sys.argv
    text = report.to_json(
        versions={"python": platform.python_version()}
        | {package: _version(package) for package in ("autoddp", "torch")},
        script=name,
        arguments=arguments,
        ranks=world.world_size,
        nodes=nodes,
        backend=backend,
        view=options.view,
        exit=code,
    )
    try:
        Path(options.report).write_text(text)
    except OSError as error:  # the script has ended, and its outcome is what counts
        report.say(f"--report: {options.report} cannot be written ({error.strerror})")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None  # a checkout that is not installed
