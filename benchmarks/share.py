"""The share of one process's work that the busiest of N ranks does, over scripts/ and examples/.

    python -m benchmarks.share [--nproc 2] [--markdown] [--why] [NAME ...]

Work is the input elements of modules without parts (see recorded.py), of forwards in training and
of those in evaluation. 1/N is the least; 1 says that every rank does all of it. `--why` adds what
gathers, as the job's report has it.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.recorded import COUNTS, counts
from tests import test_end_to_end, test_examples
from tests.support import archives
from tests.support.warm import Warm

SHOWN = 4  # reasons


@dataclass(frozen=True)
class Case:
    """A script, its arguments, and options of the command."""

    name: str
    command: list[str]
    options: list[str]


def cases(wanted: list[str]) -> Iterator[Case]:
    """The scripts and examples of these names, or all."""
    for name in test_end_to_end.SCRIPTS:
        if wanted and name not in wanted:
            continue
        yield Case(name, test_end_to_end.command(name), test_end_to_end.OPTIONS.get(name, []))
    for name, arguments in test_examples.ARGUMENTS.items():
        if wanted and f"examples/{name}" not in wanted:
            continue
        yield Case(f"examples/{name}", [str(test_examples.FOLDER / f"{name}.py"), *arguments], [])


@dataclass(frozen=True)
class Share:
    """Of one process's work; None where one process does none of that kind."""

    training: float | None
    evaluation: float | None
    why: list[str]


class Measure:
    """Runs cases plainly and on ranks, and compares what the processes count."""

    def __init__(self, folder: Path, nproc: int) -> None:
        self.folder, self.nproc = folder, nproc
        path = folder / "counts"
        self.counts = counts(path, new=True)
        os.environ[COUNTS] = str(path)
        self.warm = Warm("benchmarks.recorded")

    def share(self, case: Case, mirror: str) -> Share:
        report = self.folder / "report.json"
        options = ["--nproc", str(self.nproc), "--report", str(report), *case.options]
        alone = self._busiest("python", *case.command, mirror=mirror)
        ours = self._busiest("autoddp", "run", *options, *case.command, mirror=mirror)
        found = [None if not alone[kind] else int(ours[kind]) / int(alone[kind]) for kind in (0, 1)]
        decisions = json.loads(report.read_text())["decisions"] if report.exists() else []
        report.unlink(missing_ok=True)
        return Share(*found, list(_reasons(decisions)))

    def _busiest(self, *command: str, mirror: str) -> Any:
        self.counts[:] = 0
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            done = self.warm.run(*command, folder=Path(folder, "run"), timeout=300, mirror=mirror)
        assert done.code in (0, 3), f"{' '.join(command)}\n{done.err[-3000:]}"
        return self.counts[self.counts[:, :-1].sum(1).argmax()].copy()


def _reasons(decisions: list[dict[str, Any]]) -> Iterator[str]:
    found = sorted((d for d in decisions if d["kind"] == "gather"), key=lambda d: -d["size"])
    for d in found[:SHOWN]:
        yield f"{d['what']} at {d['where']}, {d['count']} times, {d['size']} bytes"


def _shown(share: float | None, plain: str) -> str:
    return plain if share is None else f"{share:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--nproc", type=int, default=2)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--why", action="store_true")
    given = parser.parse_args()
    line = "| {} | {} | {} |" if given.markdown else "{:32}{:>10}{:>12}"
    print(line.format("script", "training", "evaluation"), flush=True)
    if given.markdown:
        print("|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        archives.make(Path(folder, "www"))
        measure = Measure(Path(folder), given.nproc)
        with archives.serving(Path(folder, "www")) as server:
            for case in cases(given.names):
                share = measure.share(case, server.url)
                found = (share.training, share.evaluation)
                print(line.format(case.name, *(_shown(s, "-") for s in found)), flush=True)
                if given.why:
                    print(*(f"    {reason}" for reason in share.why), sep="\n", flush=True)
        measure.warm.close()


if __name__ == "__main__":
    main()
