"""Whether ranks share the rows of each batch, or each computes whole batches: what is faster.

A placement cannot change a number, so with `auto` it is chosen by a trial: after a warm-up some
steps run sharded and some replicated, in turn. Rank 0's clock decides, and all ranks are told at
the same step: a rank that went on alone would wait for others that compute without it.

The two ways differ in the last bits of sums. So that a script chooses alike in each run, a trial is
at a fixed step, and the way changes only if the other one is clearly faster.

What changes is where new batches become sharded: a loader, and the entry of a module. Sharded
batches and graphs that are there remain, since the rules take any mixture.
"""

from __future__ import annotations

import resource
import weakref
from collections import deque
from collections.abc import Iterable
from contextlib import ExitStack
from time import perf_counter  # the script's is patched
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from autoddp import torch_internals
from autoddp.comm import accelerator
from autoddp.patching import Feature
from autoddp.torch_internals import disable_dynamo
from autoddp.training.parameters.choice import free_on
from autoddp.view.work import SHARDED, WHOLE

if TYPE_CHECKING:
    from autoddp.effects.run import Run

FASTER = 1.3  # how much faster the other way has to be
LONG = 0.05  # seconds; a step that takes longer has enough work to share
OTHERS = 20  # steps of other optimizers in a row, after which their loop is the one to watch
EACH, AGAIN = 250, 1000  # steps until a look at the time of steps, and until the next trial
CHANGED = 2.0  # how much longer or shorter steps are before that, for a trial at once
# steps of a trial: whether batches are replicated, and whether the time counts; the first step of a
# way still takes batches that were made before
FIRST = [(False, False)] * 10 + [(False, True)] * 10
BOTH = [(True, False)] * 3 + [(True, True)] * 10 + [(False, False)] * 3 + [(False, True)] * 10
TRIAL = FIRST + BOTH + BOTH[:13]


class Placement(Feature):
    """The choice of a job; its state is alike on all ranks, but for the times of steps.

    Steps are those of one optimizer, as several may step in turn (GANs).

    Attributes:
        step: How many steps of the trial are done; None outside of a trial.
        since: The steps since the last trial.
        recent: The seconds of the last steps.
        usual: The seconds of a step when the way was chosen.
    """

    name = "placement"
    without = "ranks share the rows of each batch, even if whole batches are faster"
    views = ("global",)

    def __init__(self, run: Run) -> None:
        self.run, self.view, self.group = run, run.view, run.group
        self.step: int | None = 0
        self.since = self.others = 0
        self.seconds: dict[bool, list[float]] = {False: [], True: []}  # of steps, by the way
        self.recent: deque[float] = deque(maxlen=50)
        self.usual = self.began = 0.0
        self.chosen = self.stepping = False
        self.watched: Any = lambda: None  # a weak reference to the optimizer
        self.work: dict[str, float] = {}
        self.memory = _host_peak()

    @classmethod
    def wanted(cls, options: Any) -> bool:
        return options.placement != "sharded"

    def setup(self, undo: ExitStack) -> None:
        """Replicate from the start, or count the steps of optimizers."""
        undo.callback(setattr, self.view, "replicates", False)
        if self.run.options.placement == "replicated":
            self.view.replicates = True
            return
        undo.callback(register_optimizer_step_pre_hook(self._begin).remove)
        undo.callback(register_optimizer_step_post_hook(self._end).remove)

    def _begin(self, *_: Any) -> None:
        self.stepping = True

    @disable_dynamo
    def _end(self, optimizer: Optimizer, *_: Any) -> None:
        """Count a step: once if a subclass calls the step of its base class."""
        context = self.view.context
        if not self.stepping or not context.is_rank() or context.in_thread():
            return
        self.stepping = False
        if torch_internals.in_backward() or accelerator.capturing():
            return
        if self.watched() is not optimizer:
            self.others += 1
            if self.others < OTHERS and self.began:
                return
            self._watch(optimizer)
        elif self.step is None:
            self._settled()
        else:
            self._tried(self.step)
        self.others = 0

    def _watch(self, optimizer: Optimizer) -> None:
        """Begin to count the steps of an optimizer, with a trial."""
        self.watched, self.step = weakref.ref(optimizer), 0
        self.view.replicates = TRIAL[0][0]
        self.began = perf_counter()

    def _lap(self) -> float:
        """Return the seconds since the last step."""
        if self.group.kind and self.step is not None:
            accelerator.synchronize()
        before, self.began = self.began, perf_counter()
        return self.began - before

    # ---- a trial

    def _tried(self, step: int) -> None:
        """Note the time of a step of the trial, and set the way of the next one."""
        replicated, counts = TRIAL[step]
        seconds = self._lap()
        if counts:
            self.seconds[replicated].append(seconds)
        elif step == 0:
            self.seconds = {False: [], True: []}
        self.step = step = step + 1
        if step == len(FIRST) - 10:
            self.work = dict(self.view.work.seconds)
        if step == len(FIRST) and not self._told(not self._against()):
            self._choose(False)
        elif step == len(TRIAL):
            self._choose(self._told(self._is_faster()))
        else:
            self.view.replicates = TRIAL[step][0]

    def _told(self, yes: bool) -> bool:
        """Return what rank 0 says, unless another rank's memory or settings forbid it."""
        return self.group.agree(yes if self.group.rank == 0 else not self._forbidden())

    def _against(self) -> str:
        """Return why rank 0 does not try whole batches; nothing if it does."""
        if why := self._forbidden():
            return why
        work = self.view.work.seconds
        gathers = work[WHOLE] - self.work[WHOLE] > work[SHARDED] - self.work[SHARDED]
        enough = _usual(self.seconds[False]) > LONG and not gathers
        return "there is enough work to share" if enough else ""

    def _forbidden(self) -> str:
        """Return why this rank must not compute whole batches; nothing if it may."""
        if torch.are_deterministic_algorithms_enabled():
            return "the script asks for deterministic algorithms"
        if torch_internals.compiles():
            return "what is compiled for rows would be compiled again"
        if self.view.sharded_parameters:
            return "parameters are sharded"
        # what the script has taken so far is for a rank's rows
        return "whole batches may not fit in memory" if self._more_memory() > 0 else ""

    def _more_memory(self) -> int:
        """Return the bytes that whole batches may need beyond what is free on this rank."""
        more, ranks = self.group.size - 1, self.run.world.local_world_size
        host = (_host_peak() - self.memory) * more - free_on(torch.device("cpu"), ranks)
        if not self.group.kind:
            return host
        device = torch.device(self.group.kind)
        module: Any = getattr(torch, device.type)
        if not hasattr(module, "max_memory_allocated"):
            return host
        return max(host, module.max_memory_allocated() * more - free_on(device, ranks))

    def _is_faster(self) -> bool:
        """Return whether batches are to be replicated, by rank 0's clock."""
        sharded, replicated = _usual(self.seconds[False]), _usual(self.seconds[True])
        factor = 1 / FASTER if self.chosen else FASTER
        return sharded > factor * replicated

    # ---- between trials

    def _choose(self, replicated: bool) -> None:
        """Take a way until the next trial, and say so if it is another one than before."""
        self.view.replicates, self.step, self.since = replicated, None, 0
        self.recent.clear()
        times = {way: _usual(found) for way, found in self.seconds.items() if found}
        self.usual = times[replicated]
        changes, self.chosen = replicated != self.chosen, replicated
        way = "replicated" if replicated else "sharded"
        what = f"batches are {way}: a step takes {1e3 * times[False]:.2g} ms with sharded ones"
        if True in times:
            what += f", {1e3 * times[True]:.2g} ms with replicated ones"
        else:
            what += f"; nothing else is tried, as {self._against() or 'another rank cannot'}"
        if changes or not self.run.report.of("placement"):
            self.run.report.add("placement", "", what)
        if changes:
            self.run.report.say_between(f"{what}; --placement {way} does so in every run")

    def _settled(self) -> None:
        """Count a step, and begin another trial if it is time, or if steps take another time."""
        self.recent.append(self._lap())
        self.since += 1
        if self.since % EACH:
            return
        ratio = _usual(self.recent) / self.usual
        changed = not 1 / CHANGED < ratio < CHANGED
        if self._told(self.since >= AGAIN or changed):
            self.step, self.view.replicates = 0, TRIAL[0][0]


def _usual(seconds: Iterable[float]) -> float:
    """Return the lower quartile: other programs make steps longer, and never shorter."""
    known = sorted(seconds)
    return known[len(known) // 4]


def _host_peak() -> int:
    """Return the most memory that this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
