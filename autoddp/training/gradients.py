"""Gradients are the true ones on every rank when backward() returns."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import ExitStack
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves

from autoddp import torch_internals
from autoddp.comm import accelerator
from autoddp.comm.context import Code
from autoddp.own_hooks import own_hooks
from autoddp.patching import Call, Feature, patch, stands_for
from autoddp.training.asked_gradients import as_held, gradients_of
from autoddp.training.backwards import Backwards, named
from autoddp.training.consistency import Consistency
from autoddp.training.leaves import leaves_without_rows
from autoddp.training.parameters.shard import is_shard
from autoddp.training.uncompiled import disable_dynamo  # a compiled step breaks its graph there
from autoddp.view import Partial, ShardedTensor
from autoddp.view.redistribute import Boundary, mean_over_ranks
from autoddp.view.rules.autograd import listed, roots

if TYPE_CHECKING:
    from autoddp.effects.run import Run

SPLIT = (ShardedTensor, Partial)


class Gradients(Feature):
    """Averaging by torch's DistributedDataParallel, armed when backward() is called.

    Gradients are averaged when backward ends, not at `step()`: clipping and unscaling come before.
    Those that a script accumulates are averaged once, see `late_averaging`.
    """

    name = "gradients"
    without = "each rank keeps the gradients of its own rows, and weights drift apart"
    views = ("global",)

    def __init__(self, run: Run) -> None:
        self.run, self.view, self.group = run, run.view, run.group
        self.backwards = Backwards(run.view, late=True)
        self.consistency = Consistency(run)
        self.asked = False  # gradients that the script asks for are computed

    def setup(self, undo: ExitStack) -> None:
        """Register the comparisons before steps and saves, and the last averaging at the end."""
        undo.enter_context(warnings.catch_warnings())
        # such gradients are copied to the bucket, which costs little
        warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
        late = self.backwards.pending
        undo.callback(late.forget)
        self.group.at_end.append(late.average)
        undo.callback(self.group.at_end.remove, late.average)
        undo.callback(register_optimizer_step_pre_hook(self.compare_before_step).remove)
        self.run.effects.before_save.append(self.compare_before_save)
        undo.callback(self.run.effects.before_save.remove, self.compare_before_save)

    def _plain(self, *held: Any) -> bool:
        """Return whether to call torch alone.

        So do data sets and threads, for what this rank alone computes, unless an argument is
        sharded; and fake tensors have no numbers.
        """
        context = self.view.context
        return (
            not context.is_rank()
            or ((context.depth[Code.FETCH] or context.in_thread()) and not _held(held))
            or torch_internals.transform() is not None
            or torch.compiler.is_compiling()
            or torch_internals.compiler_traces()
            or accelerator.capturing()
            or any(hasattr(x, "fake_mode") for x in tree_leaves(held))
        )

    def _wholes(self, args: Any) -> list[Tensor]:
        """Return the roots of a backward if their graph may be the same on all ranks, else none."""
        if not self.view.alike or not args or self._plain() or _held(args):
            return []
        found = [args[0]] if isinstance(args[0], Tensor) else [*(args[0] or ())]
        return found if all(isinstance(x, Tensor) for x in found) else []

    def _apart(self) -> bool:
        """Return whether ranks share no work, and this is the script, outside of a backward."""
        context = self.view.context
        return (
            self.view.alike
            and not self.backwards.depth
            and not context.depth[Code.FETCH]
            and get_ident() == context.thread
            and not torch.compiler.is_compiling()
        )

    def _alone(self, args: Any) -> bool:
        """Return whether a backward is torch's alone: no graph on this rank leads from rows."""
        return not Boundary.nodes and bool(args) and type(args[0]) is Tensor and self._apart()

    @patch(
        "torch.autograd:backward",
        why="gradients are averaged over ranks before it returns",
        hot=True,
    )
    def backward(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """Replace it by a function that averages, where there is something to average."""

        @stands_for(plain)
        def backward(*args: Any, **kwargs: Any) -> None:
            if self._alone(args) and self.consistency.skips():
                return self.backwards.run_plain(plain, args, kwargs)
            return self._averaged(Call(plain, args, kwargs))

        return backward

    @disable_dynamo
    def _averaged(self, call: Call) -> None:
        """Arm the reducer of the leaves of this backward; average at its end what none covers."""
        if wholes := self._wholes(call.args):
            leaves = None if self.backwards.depth else leaves_without_rows(wholes)
            if leaves is not None:
                # as in `_alone`: a rank may come here since a graph of rows is not collected yet
                skips = self.consistency.skips()
                with self.view.context.within(Code.PLAIN):
                    self.backwards.run_plain(call.plain, inner=leaves)
                return None if skips else self.consistency.note(leaves)
        if not call.named or self._plain(call.named["tensors"]):
            return call.plain()
        self.view.pull()
        given = named(call)
        tops, given["grad_tensors"] = roots(given.pop("tensors"), given.get("grad_tensors"))
        if listed_inputs := listed(given.get("inputs")):
            given["inputs"] = [self._accumulating(x) for x in listed_inputs]
        with self.view.context.within(Code.PLAIN):
            self.consistency.note(self.backwards.run(call.wrapped, tops, given))
        return None

    def _accumulating(self, x: Any) -> Any:
        """Return the local tensor of an input of a backward.

        Leaves get the true gradient anyway, and torch retains that of others, from here on.
        """
        if isinstance(x, Tensor) and x.requires_grad and not x.is_leaf:
            x.retain_grad()
        return as_held(x)

    @patch(
        "torch.autograd:grad",
        why="the script gets true gradients: by rows of a batch, else averaged",
        hot=True,
    )
    def grad(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """Replace it by a function that averages, where there is something to average."""

        @stands_for(plain)
        def grad(*args: Any, **kwargs: Any) -> Any:
            self.consistency.expect_any()
            if not self._alone(args) or _held((args, kwargs)):
                return self._true_gradients(Call(plain, args, kwargs))
            return plain(*args, **kwargs)

        return grad

    @disable_dynamo
    def _true_gradients(self, call: Call) -> Any:
        """Compute true gradients.

        In transforms, and in a backward without sharded tensors, this calls torch alone.
        """
        wholes = self._wholes(call.args)
        if wholes and not _held(call.kwargs) and leaves_without_rows(wholes) is not None:
            with self.view.context.within(Code.PLAIN):
                return call.plain()
        given = dict(call.named)
        if not given or self._plain(given["outputs"]):
            return call.plain()
        held = _held((given["outputs"], given["inputs"]))
        if (self.backwards.depth or self.asked) and not held:
            return call.plain()
        self.view.pull()
        outputs, inputs = given.pop("outputs"), given.pop("inputs")
        # torch calls this function again under a mode, such as a default device
        before, self.asked = self.asked, True
        try:
            with self.view.context.within(Code.PLAIN):
                seeds = given.pop("grad_outputs", None)
                return gradients_of(self.view, call.wrapped, outputs, inputs, seeds, given)
        finally:
            self.asked = before

    @patch(
        "torch:Tensor.register_hook",
        "torch:Tensor.register_post_accumulate_grad_hook",
        why="a hook on a parameter sees the true gradient, not this rank's part of it",
    )
    def hook_sees_mean(self, call: Call) -> Any:
        """Average the gradient before the hook; averaging again afterwards changes nothing."""
        tensor, hook = call.instance, call.named.get("hook")
        if hook is None or _ours(hook) or self._plain() or not self._may_be_a_part(tensor):
            return call.plain()
        if call.wrapped.__name__ == "register_hook":
            return call.wrapped(lambda g: hook(self._mean(g)))

        def after(parameter: Tensor) -> Any:
            if not (self.backwards.alone or is_shard(parameter)):  # it may be sharded by now
                self.backwards.replicas.average([parameter])
            return hook(parameter)  # torch refuses all but None

        return call.wrapped(after)

    @patch("torch:Tensor.retain_grad", why="what is retained is the true gradient, not a part")
    def retain_mean(self, call: Call) -> None:
        """Average the gradient before it is retained, which comes after all hooks."""
        x = call.instance
        apart = not self._plain() and self._may_be_a_part(x)
        if apart and x.requires_grad and not (x.is_leaf or x.retains_grad):
            with own_hooks():
                x.register_hook(self._mean)
        return call.plain()

    def _may_be_a_part(self, x: Any) -> bool:
        """Return whether the gradient of a tensor may be this rank's part of it.

        That of a replicated tensor is until it comes to a leaf. Code that is marked as rowwise has
        tensors of its own.
        """
        if not isinstance(x, Tensor) or isinstance(x, SPLIT) or is_shard(x):
            return False
        rowwise = self.view.context.is_plain() and not torch_internals.in_backward()
        return x.is_leaf or not rowwise

    def _mean(self, g: Tensor) -> Tensor:
        return g if is_shard(g) or self.backwards.alone else mean_over_ranks(g, self.group)

    def compare_before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Average pending gradients, and compare them, see `Consistency`."""
        pending = bool(self.backwards.pending.leaves)
        if pending or not self._apart() or not self.consistency.passes():
            self._compare(optimizer)

    @disable_dynamo
    def _compare(self, optimizer: Any) -> None:
        if self._plain():
            return
        self.backwards.pending.average()
        self.consistency.before_step(optimizer, self.backwards.depth > 0)

    def compare_before_save(self) -> None:
        """Compare before a checkpoint, see `Consistency`."""
        if self._plain():
            return
        self.backwards.pending.average()
        self.consistency.before_save()


def _held(given: Any) -> bool:
    """Return whether a sharded tensor or a partial sum is among these."""
    found = (given,) if isinstance(given, Tensor) else tree_leaves(given)
    return any(isinstance(x, SPLIT) for x in found)


def _ours(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).startswith("autoddp.")  # None for builtins
