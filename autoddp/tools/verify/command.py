"""Run a script on one process and on ranks, and tell where and why their numbers differ."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from autoddp.errors import BadInput
from autoddp.options import Options
from autoddp.process.script import Script
from autoddp.tools.record.recording import Recording
from autoddp.tools.rehearse import picture, runs
from autoddp.tools.rehearse.log_tail import tail
from autoddp.tools.rehearse.parents import Parents
from autoddp.tools.rehearse.progress import Progress
from autoddp.tools.rehearse.runs import NOTHING, Left, Runner
from autoddp.tools.verify import plot
from autoddp.tools.verify.bisection import Bisection
from autoddp.tools.verify.causes import Cause, CauseEvidence, cause_of, repeats, rounding, unknown
from autoddp.tools.verify.findings import OTHER, Difference, Findings
from autoddp.tools.verify.show import finish
from autoddp.tools.verify.verdict import (
    DIFFERENT,
    EQUAL,
    NOT_RUN,
    Conclusion,
    VerifyOptions,
)

CHANGES = "autoddp.tools.verify.changes"
CONTROL = (f"{CHANGES}:other_order", f"{CHANGES}:other_pace")  # of one process
# Variables that make one process sum in another order, to tell how far rounding alone carries this
# training. Torch and its libraries read them when they first compute.
OTHER_ORDER = MappingProxyType(
    {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "AVX", "MKL_CBWR": "AVX"}
)


def run(
    script: Script, options: Options, wanted: VerifyOptions, parents: Parents | None = None
) -> int:
    """Run the script on one process and on ranks, compare their numbers, and tell the result.

    Args:
        script: The script to run.
        options: The options of the ranks.
        wanted: What to compare, and what to make of it.
        parents: The processes to fork runs from, if they are there already; they are kept.

    Returns:
        0 if equal, 1 if different, 2 if one process cannot run the script.

    Raises:
        BadInput: The options do not allow it, and nothing was started; or the disk is full.
    """
    nproc = check(script, options, wanted)
    progress = Progress(options.quiet, wanted.steps)
    with runs.stoppable():
        runner = Runner(script, "numbers", progress, parents=parents or Parents())
        try:
            with runs.enough_room(runner.root):
                verdict = Verification(runner, options, nproc, wanted).verdict()
        finally:
            progress.close()
            runner.close()
            if parents is None:
                runner.parents.close()
    return finish(verdict, wanted, options.quiet)


def check(script: Script, options: Options, wanted: VerifyOptions) -> int:
    """Check that all that is asked for can be done, and return the number of ranks.

    Raises:
        BadInput: The script or the options do not allow it.
    """
    runs.check(script, options, "verify")
    if wanted.plot is not None:
        picture.check(wanted.plot)
    nproc = options.nproc or 2
    if nproc < 2:
        raise BadInput(f"--nproc is {nproc}; it takes 2 or more: one process is compared with them")
    return nproc


class Verification:
    """The runs that a comparison takes, each made only if it is needed."""

    def __init__(self, runner: Runner, options: Options, nproc: int, wanted: VerifyOptions) -> None:
        self.runner, self.options, self.nproc, self.wanted = runner, options, nproc, wanted
        self.seconds: dict[str, float] = {}

    def verdict(self) -> Conclusion:
        """Make the runs, compare them, and conclude."""
        verdict = Conclusion(
            self.runner.script.name,
            self.nproc,
            ("one process", f"{self.nproc} ranks"),
            seconds=self.seconds,
        )
        for nproc in (1, self.nproc):  # both parents import torch at the same time
            self.runner.parent(nproc)
        one = self._run("one process", 1)
        if one.raised or (one.code and not one.steps.get(0)):
            verdict.code, verdict.tail = NOT_RUN, tail(one.err)
            verdict.why = (
                f"{verdict.script} ends with exit code {one.code} on one process, without autoddp"
            )
            return verdict
        ranks = self._run(f"{self.nproc} ranks", self.nproc)
        if self.wanted.plot is not None:
            plot.draw(self.wanted.plot, one, ranks)
        verdict.among = among(ranks)
        verdict.findings, verdict.control = self._compared(one, ranks, verdict.among.first)
        self._notes(verdict, one, ranks)
        self._widen(verdict)
        self._judge(verdict, one, ranks)
        return verdict

    def _run(
        self,
        name: str,
        nproc: int,
        *,
        steps: int | None = None,
        float64: bool = False,
        other_order: bool = False,
        disable: tuple[str, ...] = (),
    ) -> Left:
        left = self.runner.run(
            name,
            replace(self.options, nproc=nproc, disable=(*self.options.disable, *disable)),
            steps=steps or self.wanted.steps,
            changes=CONTROL * other_order + (f"{CHANGES}:float64",) * float64,
            environ=OTHER_ORDER if other_order else NOTHING,
        )
        self.seconds[name] = round(left.seconds, 2)
        return left

    def _compared(
        self, one: Left, ranks: Left, parted: Difference | None, float64: bool = False
    ) -> tuple[Findings, Findings]:
        """Compare two runs, and excuse what differs about as much between two runs of one process.

        Where the ranks parted, only what came before can be rounding.

        Returns:
            What differs, and how one process differs from itself if it sums in another order.
        """
        found = compare(one, ranks)
        last = parted.step if parted else None
        if found.equal or (ranks.code and not found.steps):
            return found, Findings()
        name = "one process, summing in another order" + ", in float64" * float64
        again = self._run(name, 1, other_order=True, steps=last, float64=float64)
        control = compare(one, again) if last is None else compare_steps_of(one, again, last)
        again.forget()
        if again.raised:
            found.notes.append(
                f"{name} ends in {tail(again.err)[-1] if again.err else again.code!r}: nothing is "
                "taken for rounding"
            )
        elif next(repeats(control), None) is None:
            found.excuse(control)
        return found, control

    def _notes(self, verdict: Conclusion, one: Left, ranks: Left) -> None:
        verdict.notes += verdict.findings.notes
        came = min(len(left.steps.get(0, [])) for left in (one, ranks))
        if self.wanted.steps is not None and came >= self.wanted.steps:
            verdict.notes.append(
                f"--steps {self.wanted.steps}: both ended there; prints and files are compared "
                "up to there"
            )
        if not one.steps.get(0):
            verdict.notes.append(
                "no optimizer step was seen: losses, prints and files are all that was compared"
            )
        excused = verdict.findings.excused
        if excused and verdict.findings.equal:
            worst = max(excused, key=lambda found: found.size if found.size != OTHER else 0.0)
            verdict.notes.append(
                f"rounding: {len(excused)} numbers and lines differ, by no more than those of one "
                f"process that sums in another order; the largest: {worst.described()}"
            )

    def _widen(self, verdict: Conclusion) -> None:
        """Compare again in float64, where rounding is too small to be taken for an error."""
        if not self.wanted.float64:
            return
        one = self._run("one process in float64", 1, float64=True)
        if one.raised:
            verdict.notes.append(
                "--float64 cannot be applied: in float64 the script ends in "
                f"{tail(one.err)[-1] if one.err else one.code!r}"
            )
            return
        ranks = self._run(f"{self.nproc} ranks in float64", self.nproc, float64=True)
        verdict.wide, _ = self._compared(one, ranks, among(ranks).first, float64=True)
        verdict.notes.append(
            "float64: the default type, float32 by name, .float() and arrays of float32 were "
            "float64, and so is what was printed and written then; half precision stayed"
        )

    def _judge(self, verdict: Conclusion, one: Left, ranks: Left) -> None:
        findings, wide = verdict.findings, verdict.wide
        exact = wide is None or wide.equal
        only_rounding = wide is not None and rounding(findings)
        if verdict.among.equal and exact and (findings.equal or only_rounding):
            verdict.code, verdict.why = EQUAL, explain(verdict)
            return
        verdict.code = DIFFERENT
        verdict.why = f"{self.nproc} ranks do not give the numbers of one process"
        if ranks.code:
            verdict.tail = tail(ranks.err)
        case = CauseEvidence(findings, verdict.among, verdict.control, ranks, self.options, wide)
        verdict.cause = cause_of(case) or self._search(one, findings, verdict.control)

    def _search(self, one: Left, findings: Findings, control: Findings) -> Cause:
        """Run the ranks again, up to where they differed, with less and less of autoddp."""
        step = findings.first.step if findings.first else None

        def right(left_out: tuple[str, ...]) -> bool:
            name = f"{len(search.known) + 1}: without {','.join(left_out)}"[:80]
            left = self._run(name, self.nproc, disable=left_out, steps=step)
            found = compare(one, left) if step is None else compare_steps_of(one, left, step)
            left.forget()
            found.excuse(control)
            return found.equal

        search = Bisection(right)
        return next(search.cause(steps=step is not None), None) or unknown(search.known)


def compare(want: Left, got: Left) -> Findings:
    """Compare the steps, prints and files of two runs."""
    from autoddp.tools.verify.outputs import compare_outputs
    from autoddp.tools.verify.steps import allowed

    findings = compare_steps_of(want, got)
    records = want.steps.get(0, [])
    dtypes = sorted({name for record in records for name in record["dtypes"]})
    outputs = compare_outputs(want, got, allowed(dtypes or ["float32"], len(records)))
    findings.counts |= outputs.counts
    findings.differences += outputs.differences
    findings.notes += outputs.notes
    return findings


def compare_steps_of(want: Recording, got: Recording, last: int | None = None) -> Findings:
    """Compare rank 0's steps in two runs, up to `last`; without it, also the losses after them."""
    from autoddp.tools.verify.steps import compare_rest, compare_steps

    findings = compare_steps(want.steps.get(0, [])[:last], got.steps.get(0, [])[:last])
    if last is None:
        compare_rest(findings, want.ends.get(0, {}), got.ends.get(0, {}))
    return findings


def among(ranks: Recording) -> Findings:
    """Compare the steps of all ranks with those of rank 0."""
    from autoddp.tools.verify.steps import compare_ranks

    return compare_ranks(ranks.steps)


def explain(verdict: Conclusion) -> str:
    """Say why the ranks count as equal."""
    if verdict.wide is not None:
        return f"in float64 no number is off by more than {verdict.wide.largest:.1e}" + (
            "; what differs in the script's own type is rounding" if verdict.findings.apart else ""
        )
    if any(found.step for found in verdict.findings.excused):
        return (
            f"{verdict.nproc} ranks differ from one process by rounding, as one process does from "
            "itself; --float64 tells for certain"
        )
    worst = verdict.findings.largest
    return (
        f"{verdict.nproc} ranks give the numbers of one process; "
        f"the largest difference is {worst:.1e}"
    )
