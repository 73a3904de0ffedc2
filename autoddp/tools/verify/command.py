"""Run a script on one process and on ranks, and tell where and why their numbers differ."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from autoddp.errors import BadInput
from autoddp.options import Options
from autoddp.process.script import Script
from autoddp.tools import runs
from autoddp.tools.runs import Left, Runner, tail
from autoddp.tools.verify.causes import MARKED, TIPPED, UNKNOWN, causes, unrepeated
from autoddp.tools.verify.findings import OTHER, Findings
from autoddp.tools.verify.outputs import Again, compare_outputs
from autoddp.tools.verify.steps import allowed, compare_ranks, compare_runs
from autoddp.tools.verify.verdict import DIFFERENT, NOT_RUN, Conclusion, VerifyOptions

CHANGES = "autoddp.tools.verify.changes"
OTHER_PACE, FLOAT64 = f"{CHANGES}:other_pace", f"{CHANGES}:float64"
AGAIN = (
    "what a second run of one process does not repeat (clocks, rates, process numbers) is not "
    "compared"
)
WIDE = (
    "float64: the default type, float32 by name, .float(), arrays and files of float32 were "
    "float64, and so is what was printed and written then; half precision stayed"
)


def run(script: Script, options: Options, wanted: VerifyOptions) -> int:
    """Compare ranks with one process: 0 if equal, 1 if not, 2 if one process cannot run it.

    Raises:
        BadInput: The options do not allow it, and nothing was started; or there is no room.
    """
    runs.check(script, options, "verify")
    nproc = options.nproc or 2
    if nproc < 2:
        raise BadInput(f"--nproc is {nproc}; it takes 2 or more: one process is compared with them")
    with Runner.of(script, True, options.quiet) as runner:
        verdict = Verification(runner, replace(options, nproc=nproc), wanted).verdict()
    return verdict.finish(wanted, options.quiet)


class Verification:
    """The runs that a comparison takes, each made only if it is needed."""

    def __init__(self, runner: Runner, options: Options, wanted: VerifyOptions) -> None:
        self.runner, self.options, self.wanted = runner, options, wanted
        self.ranks = f"{options.nproc} ranks"
        self.seconds: dict[str, float] = {}
        self.again = Again()

    def verdict(self) -> Conclusion:
        """Make the runs, compare them, and conclude."""
        script = self.runner.script.name
        found = Conclusion(script, self.options.nproc or 2)
        found.seconds = self.seconds
        one = self._run("one process", 1)
        if one.raised or (one.code and not one.steps.get(0)):
            found.code, found.tail = NOT_RUN, tail(one.err)
            found.why = f"{script} ends with exit code {one.code} on one process, without autoddp"
            return found
        ranks = self._run(self.ranks, self.options.nproc)
        found.among, found.findings = compare_ranks(ranks.steps), compare(one, ranks, self.again)
        if ranks.code == one.code and found.among.equal:
            if self.wanted.float64 or not found.findings.equal:
                again = self._run("one process again", 1, OTHER_PACE)
                self.again = Again(one, again)
                found.notes.append(AGAIN)
                found.findings = compare(one, ranks, self.again)
                if not found.findings.equal:
                    found.cause = unrepeated(compare_runs(one, again))
            differs = not found.findings.equal and is_float32(one) and found.cause is None
            if self.wanted.float64 or differs:
                self._widen(found)
        self._judge(found, one, ranks)
        return found

    def _run(self, name: str, nproc: int | None, *changes: str) -> Left:
        options = replace(self.options, nproc=nproc)
        left = self.runner.run(name, options, steps=self.wanted.steps, changes=changes)
        self.seconds[name] = round(left.seconds, 2)
        return left

    def _widen(self, found: Conclusion) -> None:
        """Compare again in float64, where rounding is too small to be taken for an error."""
        one = self._run("one process in float64", 1, FLOAT64)
        if one.raised or one.code:
            why = tail(one.err)[-1] if one.err else f"exit code {one.code}"
            found.notes.append(f"float64 tells nothing: with it one process ends in {why}")
            return
        ranks = self._run(f"{self.ranks} in float64", self.options.nproc, FLOAT64)
        found.wide = compare(one, ranks, self.again)
        found.notes.append(WIDE)

    def _judge(self, found: Conclusion, one: Left, ranks: Left) -> None:
        steps = min(len(run.steps.get(0, [])) for run in (one, ranks))
        if self.wanted.steps is not None and steps >= self.wanted.steps:
            found.notes.append(f"--steps {steps}: both ended there, and are compared up to there")
        if not one.steps.get(0):
            found.notes.append("no optimizer step was seen: all else was compared")
        differences, wide = found.findings.differences, found.wide
        if found.among.equal and (wide.equal if wide else not differences):
            if all(each.size != OTHER for each in differences):
                found.why = explain(found)
                return
            found.cause = TIPPED
        found.code = DIFFERENT
        found.why = f"{self.ranks} do not give the numbers of one process"
        found.tail = tail(ranks.err) if ranks.code else []
        known = causes(found.findings, found.among, self.options)
        text = Path(self.runner.script.find()).read_text(errors="replace")
        found.cause = found.cause or next(known, MARKED if "rowwise" in text else UNKNOWN)


def compare(want: Left, got: Left, again: Again) -> Findings:
    """Compare the steps, prints and files of two runs."""
    findings, records = compare_runs(want, got), want.steps.get(0, [])
    dtypes = sorted({name for record in records for name in record["dtypes"]})
    rtol = allowed(dtypes or ["float32"], len(records))
    outputs = compare_outputs(want, got, rtol, again)
    findings.counts |= outputs.counts
    findings.differences += outputs.differences
    return findings


def is_float32(run: Left) -> bool:
    """Return whether not all that a run trained was float64, in which rounding is known."""
    steps = run.steps.get(0, [])
    return not steps or any(set(step["dtypes"]) - {"float64"} for step in steps)


def explain(found: Conclusion) -> str:
    """Say why the ranks count as equal."""
    if found.wide is None:
        return (
            f"{found.nproc} ranks give the numbers of one process; the largest difference is "
            f"{found.findings.largest:.1e}"
        )
    apart = "" if found.findings.equal else "; what differs in float32 is rounding"
    return f"in float64 no number is off by more than {found.wide.largest:.1e}{apart}"
