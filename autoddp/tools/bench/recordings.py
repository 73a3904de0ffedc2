"""Summarise recordings that `autoddp run --record` made, wherever their ranks ran."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autoddp.errors import BadInput
from autoddp.tools.bench.figures import LEAST, Row, figures
from autoddp.tools.bench.show import BenchOptions, finish
from autoddp.tools.bench.ways import Way
from autoddp.tools.record.recording import Recording, read

DISTURBED = (
    "fingerprints of numbers were taken, too: their own time is in no step, but a device waited "
    "for them; --record-kind times takes none"
)


def run(folders: Sequence[str], wanted: BenchOptions, quiet: bool) -> int:
    """Tell how fast the runs were that were recorded, the first of them as the measure.

    Raises:
        BadInput: One of them is no recording, or has too few steps with times.
    """
    found = [read(folder) for folder in folders]
    rows = [row_of(each) for each in found]
    notes = [note for each in found for note in each.lacks()]
    notes += [f"{each.name} ended with exit code {each.code}" for each in found if each.code]
    if rows[0].way.ranks > 1:
        notes.append(f"speed-up is against {found[0].name}, which is not of one process")
    if any("gradients" in step for each in found for step in each.steps[0]):
        notes.append(DISTURBED)
    return finish(found[0].about["script"], rows, notes, replace(wanted, rounds=1), quiet)


def row_of(found: Recording) -> Row:
    """Make the row of a recording.

    Raises:
        BadInput: There are too few steps with times in it.
    """
    mine = found.times.get(0, [])
    if len(mine) < LEAST:
        why = "it was recorded with --record-kind numbers" if found.steps.get(0) else "no steps"
        raise BadInput(
            f"{found.name} holds {len(mine)} steps with times ({why if not mine else 'too few'}); "
            f"it takes {LEAST} or more: the first is not measured"
        )
    ranks, nodes = found.about["ranks"], found.about["nodes"]
    options = replace(found.options, nproc=ranks // nodes, nnodes=nodes, node_rank=0)
    if found.about["apart"] and ranks > 1:
        options = replace(options, view="local")  # a script that is distributed by itself is so
    way = Way(found.name, options, ranks)
    return Row(way, [figures(found, way)])
