"""A recorded run: `autoddp run --record`, and `--plot`, whose recording goes away."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from autoddp import launch
from autoddp.errors import BadInput
from autoddp.options import Options
from autoddp.process import own_ddp
from autoddp.process.script import Script
from autoddp.process.source import SourceFacts
from autoddp.report import PREFIX
from autoddp.tools.record import plot
from autoddp.tools.record.script import recorded
from autoddp.tools.rehearse import picture


def run(script: Script, options: Options) -> int:
    """Run the script recorded, draw where the time of its steps went, and return its exit code.

    Raises:
        BadInput: No recording can be made there, no picture be drawn there, or of this script.
    """
    path = options.plot
    if path is None:
        return launch.run(*recorded(script, options, options.record or ""))
    check(script, options, path)
    folder = options.record or tempfile.mkdtemp(prefix="autoddp-plot-")
    try:
        if options.record:
            code = launch.run(*recorded(script, options, folder))
        else:  # the options are compared between nodes, whose folders differ
            asked = replace(options, record_kind="times", record=folder)
            code = launch.run(recorded(script, asked, folder)[0], options)
        if options.node_rank:
            return code  # all nodes record, as all ranks read the losses; the first one draws
        curves = plot.of_ranks(Path(folder))
    finally:
        if not options.record:
            shutil.rmtree(folder, ignore_errors=True)
    said = draw(path, script.name, curves)
    if not options.quiet:
        print(f"{PREFIX} {said}", file=sys.stderr, flush=True)
    return code


def draw(path: str, name: str, curves: dict[int, plot.Curves]) -> str:
    """Draw the curves, and return what is said of it."""
    if not curves:
        return f"--plot is {path}, but no step of an optimizer was recorded: there is no picture"
    try:
        plot.draw(path, name, curves)
    except OSError as error:
        return f"--plot is {path}, which cannot be written ({error.strerror}); give another file"
    return f"--plot: {path} shows where the time of each step went"


def check(script: Script, options: Options, path: str) -> None:
    """Check, before anything runs, that a picture can be drawn of the script.

    Raises:
        BadInput: It cannot.
    """
    picture.check(path)
    if launch.launched(os.environ):
        raise BadInput(
            f"--plot is {path}, but another launcher has started this rank, and no process sees "
            "the end of all; give --record DIR, then autoddp bench --recordings --plot FILE DIR"
        )
    own = own_ddp.of(SourceFacts() if options.own_ddp == "no" else script.read(), options.own_ddp)
    if own.kind is own_ddp.Kind.ONCE:
        raise BadInput(
            f"--plot is {path}, but {script.name} starts its ranks itself ({own.line}), "
            "out of sight; leave --plot out"
        )
