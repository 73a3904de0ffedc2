"""The conclusion from all that was compared: equal, different, or not to be told."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from autoddp.errors import BadInput
from autoddp.tools.verify.causes import Cause
from autoddp.tools.verify.findings import OTHER, Difference, Findings

EQUAL, DIFFERENT, NOT_RUN = 0, 1, 2
WORDS = {EQUAL: "equal", DIFFERENT: "different", NOT_RUN: "could not run"}


@dataclass(frozen=True)
class VerifyOptions:
    """The options of `autoddp verify` that `autoddp run` has not."""

    steps: int | None = None
    float64: bool = False
    plot: str | None = None
    json: str | None = None

    def __post_init__(self) -> None:
        if self.steps is not None and self.steps < 1:
            raise BadInput(f"--steps is {self.steps}; at least 1 step is compared")
        folder = os.path.dirname(self.json or "")
        if folder and not os.path.isdir(folder):
            raise BadInput(f"--json is {self.json}, but there is no folder {folder}; make it first")


@dataclass
class Conclusion:
    """The conclusion on one script, run on some number of ranks."""

    script: str
    nproc: int
    names: tuple[str, str]  # of the two that are compared
    code: int = EQUAL
    why: str = ""  # in one sentence
    findings: Findings = field(default_factory=Findings)
    among: Findings = field(default_factory=Findings)
    control: Findings = field(default_factory=Findings)  # one process against itself
    wide: Findings | None = None  # one process against the ranks in float64
    cause: Cause | None = None
    tail: list[str] = field(default_factory=list)  # the end of an error
    notes: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    def data(self) -> dict[str, Any]:
        """Return the conclusion as --json writes it."""
        return {
            "script": self.script,
            "nproc": self.nproc,
            "verdict": WORDS[self.code],
            "code": self.code,
            "why": self.why,
            "cause": None if self.cause is None else vars(self.cause),
            "first": [_data(d) for d in (self.findings.differences or self.among.differences)[:1]],
            "compared": _counts(self.findings),
            "differences": [_data(d) for d in self.findings.differences],
            "excused": [_data(d) for d in self.findings.excused],
            "among ranks": {
                "compared": _counts(self.among),
                "differences": [_data(d) for d in self.among.differences],
            },
            "float64": None
            if self.wide is None
            else {
                "compared": _counts(self.wide),
                "differences": [_data(d) for d in self.wide.differences],
            },
            "error": self.tail,
            "notes": self.notes,
            "seconds": self.seconds,
        }


def _counts(findings: Findings) -> dict[str, Any]:
    return {
        aspect: {
            "compared": count.compared,
            "differ": findings.differ(aspect),
            "largest relative difference": count.worst,
        }
        for aspect, count in findings.counts.items()
    }


def _data(found: Difference) -> dict[str, Any]:
    """Return a difference for JSON, which has no infinity: a size that is no number's is null."""
    return vars(found) | {
        "size": None if found.size == OTHER else found.size,
        "told": found.described(),
    }
