"""Gradients that several backwards add up before a step are averaged once, or when they are read.

A script that accumulates calls backward k times before it steps and drops the gradients. The mean
over ranks of a sum is the sum of the means, so the reducer is armed at the k-th backward alone, as
under DDP's `no_sync`. What the first k - 1 leave in `.grad` is this rank's, and pending: nobody
sees it so. Whoever reads one of them has all of them averaged first, in one all-reduce.

Ranks decide alike, as they decide by what the script does: which sets of leaves its backwards lead
to, when these have no gradients, and when it reads one.
"""

from __future__ import annotations

import concurrent
import multiprocessing
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from autoddp import torch_internals
from autoddp.comm.context import Context
from autoddp.effects.engine import Mode
from autoddp.errors import Disagreement
from autoddp.patching import ABSENT, Call, Feature, patch, restore
from autoddp.training.backwards import Backwards
from autoddp.training.gradient_access import GRAD, as_torch, gradient_of
from autoddp.training.leaves import Leaves
from autoddp.training.replica import Replicas
from autoddp.view.order import Order

if TYPE_CHECKING:
    from autoddp.effects.run import Run

THROUGH = tuple(
    f"{path}/" for package in (multiprocessing, concurrent) for path in package.__path__
)


class PendingGradients:
    """The leaves whose gradients are this rank's alone, and the property that guards them.

    The property stands at `Tensor.grad` only while there are such leaves.

    Attributes:
        leaves: These leaves, by id; they are kept alive, so that ids stay theirs.
        reads: How often the script has read one.
    """

    def __init__(self, replicas: Replicas, context: Context) -> None:
        self.replicas, self.context = replicas, context
        self.leaves: dict[int, Tensor] = {}
        self.reads = 0
        self._lock = threading.RLock()
        self._guard = property(self._get, self._set, self._delete)

    def add(self, leaves: Iterable[Tensor]) -> None:
        """Hold back the gradients that these leaves have, from now on."""
        self.leaves.update({id(leaf): leaf for leaf in leaves if gradient_of(leaf) is not None})
        if self.leaves:
            for name in torch_internals.GRADIENTS:
                setattr(torch.Tensor, name, self._guard)

    def drop(self, leaves: Iterable[Tensor]) -> None:
        """Forget these leaves: their gradients are averaged, are about to be, or are gone."""
        for leaf in leaves:
            self.leaves.pop(id(leaf), None)
        if not self.leaves:
            for name in torch_internals.GRADIENTS:
                restore(torch.Tensor, name, ABSENT, self._guard)

    def forget(self) -> None:
        """Forget all leaves: the session is over."""
        self.drop(list(self.leaves.values()))

    def average(self) -> None:
        """Average all that is pending; every rank is at this place of the program."""
        if not self.leaves:
            return
        with self._lock:  # another thread that reads meanwhile waits for the end
            leaves = list(self.leaves.values())
            # a handler that interrupts and reads finds them pending still, and averages them itself
            gradients = [gradient_of(leaf) for leaf in leaves]
            self.replicas.average_dense([g for g in gradients if g is not None])
            self.drop(leaves)

    def _get(self, leaf: Tensor) -> Any:
        if id(leaf) in self.leaves:
            self._check()
            self.reads += 1
            self.average()
        return gradient_of(leaf)

    def _set(self, leaf: Tensor, value: Any) -> None:
        as_torch(GRAD.__set__, leaf, value)
        self.drop([leaf])

    def _delete(self, leaf: Tensor) -> None:
        as_torch(GRAD.__delete__, leaf)
        self.drop([leaf])

    def _check(self) -> None:
        """Refuse to read where this rank is apart: to wait for the others there would be for ever.

        What the script reads on its own thread, all ranks read. So they do on another thread of it:
        a script that did not wait for that one would race with it in one process, too. But a fetch
        of rows, what rank 0 alone does for all, a finalizer, a forked child are one rank's affair.

        Raises:
            Disagreement: The other ranks do not read here.
        """
        context = self.context
        apart = not context.in_job() or context.ending or context.is_internal_elsewhere()
        if context.on_script_thread():
            apart = apart or context.passes_through() or context.collecting
        if apart:
            raise Disagreement(
                "a gradient that is this rank's alone, as the script accumulates, is read where "
                "the other ranks do not read it: in a data set, a child process or a finalizer; "
                "read `.grad` of a parameter before, where all ranks do"
            )


@dataclass
class Round:
    """The backwards that led to one set of leaves since these had no gradients.

    An optimizer's step is no end of a round: a scaler skips it, a script with two has others.

    Attributes:
        leaves: The set, kept alive, so that ids stay its own.
        length: How many there were in the last round; 0 while none may be late.
        count: How many there have been in this one.
        began: How often the script had read pending gradients when it began.
        read: Whether it has read some between two of them.
        reads: In how many rounds it has.
        eager: For how many more rounds none is late, as each would be averaged when it is read.
    """

    leaves: Leaves
    length: int = 0
    count: int = 0
    began: int = 0
    read: bool = False
    reads: int = 0
    eager: int = 0

    def begin(self, reads: int) -> None:
        """Learn from the round before for this one."""
        self.reads += self.read
        self.eager = self.reads if self.read else max(0, self.eager - 1)
        self.length = 0 if self.eager else self.count
        self.count, self.began, self.read = 0, reads, False


class LateBackwards(Backwards):
    """The backwards of one rank, of which all but a round's last leave their gradients late.

    Attributes:
        allowed: Whether any may be late: not under a compiler, which reads past every property, nor
            where gradients are compressed, by a method that counts backwards.
        pending: What late ones have left.
    """

    def __init__(
        self,
        replicas: Replicas,
        order: Order,
        context: Context,
        around: Callable[[Tensor], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        super().__init__(replicas, order, around)
        self.context, self.pending = context, PendingGradients(replicas, context)
        self.allowed = replicas.compress == "none"
        self.rounds: dict[Any, Round] = {}
        self._dropped = 0  # how many reducers were when it was last looked at

    def _reduce(
        self, plain: Any, tops: list[Tensor], given: dict[str, Any], leaves: Leaves
    ) -> None:
        """Run a backward without the reducer if it may be late, else with it."""
        late, pending = self.allowed and self._late(leaves), self.pending
        held = late or (pending.leaves and any(id(leaf) in pending.leaves for leaf in leaves.dense))
        try:
            if late:
                plain(tops, **given)
            else:
                super()._reduce(plain, tops, given, leaves)
        except BaseException:
            if held:  # what was late is so still, with what this backward has added
                pending.add(leaves.dense)
            raise
        if late:
            pending.add(leaves.dense)
        elif held:  # not before: a hook may have read one meanwhile
            pending.drop(leaves.dense)

    def _late(self, leaves: Leaves) -> bool:
        """Count a backward, and tell whether its gradients may be averaged later.

        A gradient that was there before and is not pending may be in the script's hands already,
        where nothing tells that it is read.
        """
        if not self.context.on_script_thread():
            return False
        known = self.rounds.get(leaves.key)
        if known is None:
            self._let_go()
            known = self.rounds[leaves.key] = Round(leaves)
        if gradient_of(leaves.dense[0]) is None:
            known.begin(self.pending.reads)
        known.count += 1
        known.read = known.read or known.began != self.pending.reads
        return (
            known.count < known.length
            and not known.read
            and not leaves.others
            and not torch_internals.compiles()  # also before the session, or past torch.compile
            and all(id(x) in self.pending.leaves or gradient_of(x) is None for x in leaves.dense)
        )

    def before_step(self) -> None:
        """Average what is pending still: the round was shorter than the one before."""
        self.pending.average()
        self._let_go()

    def _let_go(self) -> None:
        """Let go of the sets of leaves of which no reducer is kept either."""
        if self._dropped == self.replicas.dropped:
            return
        self._dropped = self.replicas.dropped
        self.rounds = {
            key: known for key, known in self.rounds.items() if self.replicas.keeps(known.leaves)
        }


class Accumulation(Feature):
    """The patches that late averaging needs, besides the property of gradients that are pending."""

    run: Run
    backwards: LateBackwards

    @patch("torch:compile", why="a compiled function reads gradients past whatever averages them")
    def average_always(self, call: Call) -> Any:
        """Average gradients at every backward from now on."""
        self.backwards.allowed = False
        self.backwards.pending.average()
        return call.plain()

    @patch(
        "os:fork",
        "multiprocessing.process:BaseProcess.start",
        why="a child finds true gradients, also in the midst of an accumulation",
    )
    def average_before_fork(self, call: Call) -> Any:
        """Average if the script itself starts the child, as then all ranks come here."""
        effects, pending = self.run.effects, self.backwards.pending
        if pending.leaves and effects.users(THROUGH) is Mode.SYNCED:
            pending.average()
        return call.plain()
