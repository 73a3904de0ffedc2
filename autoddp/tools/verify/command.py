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
from autoddp.tools.verify.causes import ROUNDING, cause_of, not_reproducible
from autoddp.tools.verify.changes import faster_clocks, float64, last_bits
from autoddp.tools.verify.findings import OTHER, Amplified, Findings, Noting
from autoddp.tools.verify.outputs import Repeats, compare_outputs
from autoddp.tools.verify.steps import allowed, compare_runs
from autoddp.tools.verify.verdict import DIFFERENT, NOT_RUN, Conclusion, VerifyOptions

NOT_COMPARED = (
    "values that change in a second run of one process (clocks, rates, process ids) are not "
    "compared"
)
AMPLIFIED = (
    "{} give the numbers of one process but for rounding, which this training amplifies: if only "
    "the last bit of its gradients changes, one process differs from itself as much; the largest "
    "difference{} is {:.1e}"
)
EQUAL = "{} give the numbers of one process; the largest difference{} is {:.1e}"


def run(script: Script, options: Options, tool_options: VerifyOptions) -> int:
    """Compare ranks with one process; return 0 if equal, 1 if not, 2 if one process fails.

    Raises:
        BadInput: The options are wrong, and nothing was started; or the disk is full.
    """
    runs.check(script, options, "verify")
    nproc = options.nproc or 2
    if nproc < 2:
        raise BadInput(f"--nproc is {nproc}; it takes 2 or more, to compare with one process")
    draws = "whole" if options.draws == "auto" else options.draws  # whole draws of any size
    options = replace(options, nproc=nproc, draws=draws, placement="sharded")
    with Runner.of(script, True, options.quiet) as runner:
        verdict = Verification(runner, options, tool_options).verdict()
    return verdict.finish(tool_options, options.quiet)


class Verification:
    """The runs for a comparison, each made only if it is needed."""

    def __init__(self, runner: Runner, options: Options, tool_options: VerifyOptions) -> None:
        self.runner, self.options, self.tool_options = runner, options, tool_options
        self.ranks = f"{options.nproc} ranks"
        self.conclusion = Conclusion(runner.script.name, options.nproc or 2)

    def verdict(self) -> Conclusion:
        """Make the runs, compare them, and conclude."""
        result = self.conclusion
        one = self._run("one process", 1)
        if one.raised or (one.code and not one.steps.get(0)):
            result.code, result.error = NOT_RUN, tail(one.err)
            result.why = f"{result.script} ends with exit code {one.code} on one process"
            return result
        ranks = self._run(self.ranks, self.options.nproc)
        result.findings = compare(one, ranks, Repeats())
        if ranks.code == one.code and (self.tool_options.float64 or not result.findings.equal):
            self._refine(one, ranks)
        self._conclude(one, ranks)
        return result

    def _run(self, name: str, nproc: int | None, *changes: Change) -> Recording:
        options = replace(self.options, nproc=nproc)
        run = self.runner.run(name, options, steps=self.tool_options.steps, changes=changes)
        self.conclusion.seconds[name] = round(run.seconds, 2)
        return run

    def _refine(self, one: Recording, ranks: Recording) -> None:
        """Compare without values that one process does not reproduce, and if needed in float64."""
        result, second = self.conclusion, self._run("one process again", 1, faster_clocks)
        repeats = Repeats(one, second)
        result.notes.append(NOT_COMPARED)
        result.findings = compare(one, ranks, repeats)
        if not result.findings.equal:
            result.cause = not_reproducible(compare_runs(one, second))
        if not self.tool_options.float64 and (result.findings.equal or result.cause):
            return
        wide = self._run("one process in float64", 1, float64)
        if wide.raised or wide.code:
            why = tail(wide.err)[-1] if wide.err else f"exit code {wide.code}"
            result.notes.append(f"float64 was not compared, as one process fails with it: {why}")
            return
        wide_ranks = self._run(f"{self.ranks} in float64", self.options.nproc, float64)
        result.float64 = compare(wide, wide_ranks, repeats)
        if not result.float64.equal and wide_ranks.code == wide.code:
            result.float64 = self._without_amplified(wide, wide_ranks, repeats)

    def _without_amplified(self, one: Recording, ranks: Recording, repeats: Repeats) -> Findings:
        """Compare without what a last bit of the gradients becomes in a run of one process."""
        off = self._run("one process, gradients off by a last bit", 1, float64, last_bits)
        amplified = Amplified()
        compare(one, off, repeats, Noting(amplified))
        found = compare(one, ranks, repeats, Findings(amplified=amplified))
        self.conclusion.amplified = found.equal
        return found

    def _conclude(self, one: Recording, ranks: Recording) -> None:
        result, wide = self.conclusion, self.conclusion.float64
        if not one.steps.get(0):
            result.notes.append("there was no optimizer step; all else was compared")
        differences = result.findings.differences
        if wide.equal if wide else not differences:
            differences = [each for each in differences if each.size == OTHER]
            if not differences:
                off = (" in float64", wide.largest) if wide else ("", result.findings.largest)
                form = AMPLIFIED if result.amplified else EQUAL
                result.why = form.format(self.ranks, *off)
                return
            result.cause, result.findings.differences = ROUNDING, differences
        result.code = DIFFERENT
        result.why = f"{self.ranks} do not give the numbers of one process"
        result.error = tail(ranks.err) if ranks.code else []
        result.cause = result.cause or cause_of(wide or result.findings, result.nproc)


def compare(
    want: Recording, got: Recording, repeats: Repeats, findings: Findings | None = None
) -> Findings:
    """Compare the steps, prints and files of two runs."""
    findings, records = compare_runs(want, got, findings), want.steps.get(0, [])
    dtypes = sorted({name for record in records for name in record["dtypes"]})
    compare_outputs(findings, want, got, allowed(dtypes or ["float32"], len(records)), repeats)
    return findings
