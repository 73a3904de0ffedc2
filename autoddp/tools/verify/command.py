"""Run a script on one process and on ranks, and show where and why their numbers differ."""

from __future__ import annotations

from dataclasses import replace

from autoddp.errors import BadInput
from autoddp.options import Options
from autoddp.process.script import Script
from autoddp.tools import runs
from autoddp.tools.record.recording import Recording
from autoddp.tools.record.script import Change
from autoddp.tools.runs import Runner, tail
from autoddp.tools.verify.causes import TIPPED, cause_of, unrepeated
from autoddp.tools.verify.changes import float64, other_pace
from autoddp.tools.verify.findings import OTHER, Findings
from autoddp.tools.verify.outputs import Again, compare_outputs
from autoddp.tools.verify.steps import allowed, compare_runs
from autoddp.tools.verify.verdict import DIFFERENT, NOT_RUN, Conclusion, VerifyOptions

AGAIN = (
    "what a second run of one process does not repeat (clocks, rates, process numbers) is not "
    "compared"
)
EQUAL = "{} give the numbers of one process; the largest difference{} is {:.1e}"


def run(script: Script, options: Options, wanted: VerifyOptions) -> int:
    """Compare ranks with one process: 0 if equal, 1 if not, 2 if one process cannot run it.

    Raises:
        BadInput: The options do not allow it, and nothing was started; or there is no room.
    """
    runs.check(script, options, "verify")
    nproc = options.nproc or 2
    if nproc < 2:
        raise BadInput(f"--nproc is {nproc}; it takes 2 or more: one process is compared with them")
    draws = "whole" if options.draws == "auto" else options.draws  # of any size
    options = replace(options, nproc=nproc, draws=draws)
    with Runner.of(script, True, options.quiet) as runner:
        verdict = Verification(runner, options, wanted).verdict()
    return verdict.finish(wanted, options.quiet)


class Verification:
    """The runs that a comparison takes, each made only if it is needed."""

    def __init__(self, runner: Runner, options: Options, wanted: VerifyOptions) -> None:
        self.runner, self.options, self.wanted = runner, options, wanted
        self.ranks = f"{options.nproc} ranks"
        self.found = Conclusion(runner.script.name, options.nproc or 2)

    def verdict(self) -> Conclusion:
        """Make the runs, compare them, and conclude."""
        found = self.found
        one = self._run("one process", 1)
        if one.raised or (one.code and not one.steps.get(0)):
            found.code, found.error = NOT_RUN, tail(one.err)
            found.why = f"{found.script} ends with exit code {one.code} on one process"
            return found
        ranks = self._run(self.ranks, self.options.nproc)
        found.findings = compare(one, ranks, Again())
        if ranks.code == one.code and (self.wanted.float64 or not found.findings.equal):
            self._refine(one, ranks)
        self._judge(one, ranks)
        return found

    def _run(self, name: str, nproc: int | None, *changes: Change) -> Recording:
        options = replace(self.options, nproc=nproc)
        ran = self.runner.run(name, options, steps=self.wanted.steps, changes=changes)
        self.found.seconds[name] = round(ran.seconds, 2)
        return ran

    def _refine(self, one: Recording, ranks: Recording) -> None:
        """Leave out what one process does not repeat, and compare in float64 what still differs."""
        found, second = self.found, self._run("one process again", 1, other_pace)
        again = Again(one, second)
        found.notes.append(AGAIN)
        found.findings = compare(one, ranks, again)
        if not found.findings.equal:
            found.cause = unrepeated(compare_runs(one, second))
        if not self.wanted.float64 and (found.findings.equal or found.cause):
            return
        wide = self._run("one process in float64", 1, float64)
        if wide.raised or wide.code:
            why = tail(wide.err)[-1] if wide.err else f"exit code {wide.code}"
            found.notes.append(f"float64 was not compared: with it one process ends in {why}")
            return
        wide_ranks = self._run(f"{self.ranks} in float64", self.options.nproc, float64)
        found.float64 = compare(wide, wide_ranks, again)

    def _judge(self, one: Recording, ranks: Recording) -> None:
        found, wide = self.found, self.found.float64
        if not one.steps.get(0):
            found.notes.append("no optimizer step was seen: all else was compared")
        differences = found.findings.differences
        if wide.equal if wide else not differences:
            differences = [each for each in differences if each.size == OTHER]
            if not differences:
                off = (" in float64", wide.largest) if wide else ("", found.findings.largest)
                found.why = EQUAL.format(self.ranks, *off)
                return
            found.cause, found.findings.differences = TIPPED, differences  # the rest is rounding
        found.code = DIFFERENT
        found.why = f"{self.ranks} do not give the numbers of one process"
        found.error = tail(ranks.err) if ranks.code else []
        found.cause = found.cause or cause_of(wide or found.findings, found.nproc)


def compare(want: Recording, got: Recording, again: Again) -> Findings:
    """Compare the steps, prints and files of two runs."""
    findings, records = compare_runs(want, got), want.steps.get(0, [])
    dtypes = sorted({name for record in records for name in record["dtypes"]})
    compare_outputs(findings, want, got, allowed(dtypes or ["float32"], len(records)), again)
    return findings
