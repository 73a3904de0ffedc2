"""Summarise recordings that `autoddp run --record` made, wherever their ranks ran."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from autoddp.errors import BadInput
from autoddp.tools.bench.figures import LEAST, Row, figures
from autoddp.tools.bench.show import BenchOptions, Machine, finish
from autoddp.tools.bench.variants import GLOBAL, LOCAL, PLAIN, SCALED, Way
from autoddp.tools.record.recording import Recording, read
from autoddp.tools.rehearse import picture

DISTURBED = (
    "fingerprints of numbers were taken, too: their own time is in no step, but a device waited "
    "for them; --record-kind times takes none"
)
FIRST = "speed-up is against {name}, which is not of one process: no advice is given"


def run(folders: Sequence[str], wanted: BenchOptions, quiet: bool) -> int:
    """Tell how fast the runs were that were recorded, the first of them as the measure.

    Raises:
        BadInput: One of them is no recording, or has too few steps with times.
    """
    if wanted.plot is not None:
        picture.check(wanted.plot)
    found = [read(folder) for folder in folders]
    by_hand = [end["by hand"] for each in found for end in each.ends.values() if end.get("by hand")]
    rows = [row_of(each, next(iter(by_hand), 1)) for each in found]
    plain = rows[0].way.kind == PLAIN
    notes = [] if plain else [FIRST.format(name=found[0].name)]
    if any("gradients" in step for each in found for step in each.steps[0]):
        notes.append(DISTURBED)
    notes += [note for each in found for note in notes_on(each)]
    gpus = max((row.way.ranks for row in rows if row.rounds[0].on_gpu), default=0)
    machine = Machine(max(each.about["cores"] for each in found), gpus, advise=plain)
    about = found[0].about["script"], found[0].about["arguments"]
    return finish(about, rows, notes, replace(wanted, rounds=1), quiet, machine)


def notes_on(found: Recording) -> Iterator[str]:
    """Yield what a reader needs to know of a recording that is not whole."""
    if found.missing:
        yield (
            f"{found.name} has {len(found.steps)} of {found.about['ranks']} ranks: "
            f"{', '.join(map(str, found.missing))} wrote on other nodes; copy their files to it to "
            "count what they have, too"
        )
    if found.code != 0:
        ended = "has not ended" if found.code is None else f"ended with exit code {found.code}"
        yield f"{found.name} {ended}: its figures are of the steps until then"


def row_of(found: Recording, by_hand: int) -> Row:
    """Make the row of a recording.

    Args:
        found: The recording.
        by_hand: Rows of a batch that no loader made, which one process alone can count.

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
    way = way_of(found)
    return Row(way, [figures(found, way, by_hand)])


def way_of(found: Recording) -> Way:
    """Describe how a recording's ranks ran, as a row of the tables has it."""
    ranks, nodes, asked = found.about["ranks"], found.about["nodes"], found.options
    options = replace(asked, nproc=ranks // nodes, nnodes=nodes, node_rank=0)
    if found.about["apart"] and ranks > 1:
        options = replace(options, view="local")  # a script that is distributed by itself is so
    if ranks == 1:
        kind = PLAIN
    elif options.view == "global":
        kind = GLOBAL
    else:
        kind = LOCAL if options.scale_lr == "none" else SCALED
    return Way(kind, options, ranks, name=found.name)
