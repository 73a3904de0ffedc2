"""Random draws inside a split call: for the whole batch, of which this rank keeps its rows.

So dropout masks and noise are those of one process, and every generator stays where one process's
would be. Drawing for the whole costs N times the drawing; above a size, `--draws auto` lets a rank
draw its own rows from a stream of its own, and says so.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from autoddp.torch_internals import DispatchMode, HigherOrderOperator, OpOverload, parts_of
from autoddp.view.boundaries import laid_out, order_of
from autoddp.view.places import UNKNOWN, Shapes, place
from autoddp.view.streams import own_stream

if TYPE_CHECKING:
    from autoddp.view.cuts import Cuts
    from autoddp.view.state import Region

MOST = 64 * 2**20  # bytes of one draw that `--draws auto` makes whole
FILL = {
    "bernoulli_",
    "normal_",
    "uniform_",
    "exponential_",
    "random_",
    "log_normal_",
    "geometric_",
    "cauchy_",
}
SHAPED = {"randn": 0, "rand": 0}
LIKE = {"randn_like", "rand_like", "randint_like"}
# what a compiler makes of FILL; `normal` is another operator
FILLED = {name.rstrip("_") for name in FILL} - {"normal"} | {"normal_functional"}
# the range that inductor draws its seeds from
SEEDS = (torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max)
APART = 7919  # the distance between the seeds of one kernel on two ranks
DROPOUT = ("dropout_p", "dropout", "p")  # names of the probability in operators that drop inside


def is_random(func: Any) -> bool:
    """Return whether an operator draws from a generator."""
    return torch.Tag.nondeterministic_seeded in func.tags


class Draws(DispatchMode):
    """A mode that draws for `total` rows along the batch, not for `here`, and cuts at `start`."""

    def __init__(
        self,
        here: int,
        start: int,
        total: int,
        at: int = 0,
        cuts: Cuts | None = None,
        region: Region | None = None,
    ) -> None:
        super().__init__()
        self.here, self.start, self.total, self.at, self.cuts = here, start, total, at, cuts
        self.region, self.shapes = region, Shapes()
        self.view = None if cuts is None else cuts.view
        self.inside = False  # whether a kernel of a trial would have drawn inside
        self.permutes = False  # whether it drew a permutation of its rows, which is no part of all

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let compiled code run compiled under this mode, which sees what its operators draw."""
        return True

    @classmethod
    def of(cls, cuts: Cuts, at: int, region: Region | None = None) -> Draws:
        """Return the mode for this rank's rows of a batch, which lies along dimension `at`."""
        return cls(cuts.mine, cuts.start, cuts.total, at, cuts, region)

    # higher-order operators are those of compiled code, which take operators and graphs
    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, HigherOrderOperator):
            return self._of_graphs(func, args, kwargs)
        if torch.is_inference_mode_enabled():
            # there an operator that is made of others comes as one, before their draws
            parts = parts_of(self, func, *args, **kwargs)
            if parts is not NotImplemented:
                return parts
        if not is_random(func):
            return func(*args, **kwargs)
        drawn = self._draw(func, func.overloadpacket.__name__, args, kwargs)
        return func(*args, **kwargs) if drawn is NotImplemented else drawn

    def _draw(self, func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        if name == "randint" and args[:2] == SEEDS and self.view is not None:
            return self._seeds(func(*args, **kwargs))
        self.permutes |= name == "randperm" and args[0] == self.here
        shape = _shape_of(name, args)
        dim = None if shape is None else self._place(shape)
        if dim is None or shape is None:
            return self._unknown(func, name, args, kwargs)
        if self._own(shape, args):
            with own_stream(self.view, _device(args, kwargs), kwargs.get("generator")):
                return func(*args, **kwargs)
        if name in FILL:
            return args[0].copy_(
                self._mine(func(self._grow(args[0], dim), *args[1:], **kwargs), dim)
            )
        if name in FILLED:
            grown = func(self._grow(args[0], dim), *args[1:], **kwargs)
            return torch.empty_like(args[0]).copy_(self._mine(grown, dim))
        if name in LIKE:
            return self._mine(func(self._grow(args[0], dim), *args[1:], **kwargs), dim).contiguous()
        if name == "native_dropout":
            # the values there do not matter: this kernel alone tells what is dropped where
            mask = self._mine(func(self._grow(args[0], dim), *args[1:])[1], dim).contiguous()
            return args[0] * mask / (1 - args[1]), mask
        if name == "normal" and len(args) < 3:
            return self._normal(shape, dim, *args, **kwargs)
        where = next(k for k, a in enumerate(args) if isinstance(a, (list, tuple)))
        grown = [*args]
        grown[where] = self._grown(shape, dim)
        return self._mine(func(*grown, **kwargs), dim).contiguous()

    def _normal(
        self, shape: Any, dim: int, mean: Any, std: Any = 1.0, generator: Any = None
    ) -> Any:
        """Draw around these means, by the steps in which torch does."""
        like = mean if isinstance(mean, Tensor) else std
        whole = torch.empty(self._grown(shape, dim), dtype=like.dtype, device=like.device)
        spread = 1.0 if isinstance(std, Tensor) else std
        mine = self._mine(whole.normal_(0.0, spread, generator=generator), dim).contiguous()
        return (mine.mul_(std) if isinstance(std, Tensor) else mine).add_(mean)

    def _place(self, shape: Any) -> int | None:
        """Return the dimension of a draw that holds the batch, as the proof saw it."""
        if self.region is None:
            self.shapes.append(tuple(shape))
            return self._batch_dim(shape)
        found = place(shape, self.region.places, self.region.drawn)
        self.region.drawn += 1
        known = found is None or (found != UNKNOWN and shape[found] == self.here)
        return found if known else self._batch_dim(shape)

    def _batch_dim(self, shape: Any) -> int | None:
        """Return the dimension that holds the batch, None if none has its size.

        It is where the input has it, if of that size, else the first of that size.
        """
        places = (self.at, *range(len(shape)))
        return next((d for d in places if d < len(shape) and shape[d] == self.here), None)

    def _grown(self, shape: Any, dim: int) -> list[int]:
        return [self.total if d == dim else size for d, size in enumerate(shape)]

    def _grow(self, x: Tensor, dim: int) -> Tensor:
        return laid_out(tuple(self._grown(x.shape, dim)), order_of(x), x)

    def _mine(self, whole: Tensor, dim: int) -> Tensor:
        return (
            whole.narrow(dim, self.start, self.here)
            if self.cuts is None
            else self.cuts.take(whole, dim)
        )

    def _own(self, shape: Any, args: Any) -> bool:
        view = self.view
        if view is None or view.draws == "whole":
            return False
        if view.draws == "own":
            return True
        item = args[0].element_size() if isinstance(args[0], Tensor) else 4
        large = prod(shape) // max(self.here, 1) * self.total * item > MOST
        if large:
            view.report.doubt(
                "draws",
                "",
                "draws above 64 MB: each rank draws its own rows (statistically the same numbers, "
                "not those of one process; --draws whole draws them all)",
            )
        return large

    def _unknown(self, func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run a kernel that draws inside, as attention with dropout on a GPU.

        Such draws are never the same on all ranks, so each rank draws its own rows. A trial runs
        the kernel without dropping.

        Returns:
            What it gave; NotImplemented if it draws nothing for the batch, or if a trial cannot
            keep it from dropping.
        """
        inputs = [a for a in args if isinstance(a, Tensor) and a.dim()]
        if name in FILL | FILLED | LIKE or not inputs or self._batch_dim(inputs[0].shape) is None:
            return NotImplemented
        probability, undropped = _dropping(func, args, kwargs)
        if not probability:
            return NotImplemented
        if self.view is None and undropped:
            # masks by the place in a part would hide whether all else is row-wise
            self.inside = True
            return func(**undropped)
        if self.view is None:
            return NotImplemented
        self.view.report.doubt(
            "draws", "", f"{name} draws inside its kernel: each rank draws its own rows"
        )
        with own_stream(self.view, inputs[0].device):
            return func(*args, **kwargs)

    def _of_graphs(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run what takes operators or graphs; what these draw is not seen here or in backward."""
        leaves = tree_leaves((args, kwargs))
        devices = [
            x.device if isinstance(x, Tensor) else x
            for x in leaves
            if isinstance(x, Tensor | torch.device)
        ]
        # in a trial, masks by the place in a part show the call not row-wise, and it runs whole
        if self.view is None or not devices or not any(map(_may_draw, leaves)):
            return func(*args, **kwargs)
        self.view.report.doubt(
            "draws",
            "",
            f"{func.name()} draws inside compiled code: each rank draws its own rows "
            "(statistically the same numbers, not those of one process)",
        )
        with own_stream(self.view, devices[0]):
            return func(*args, **kwargs)

    def _seeds(self, drawn: Tensor) -> Tensor:
        """Make the seeds of inductor's kernels this rank's own.

        The generator goes on as in one process.
        """
        assert self.view is not None
        self.view.report.doubt(
            "draws",
            "",
            "inductor's kernels draw inside: each rank draws its own rows (statistically the same "
            "numbers, not those of one process; torch._inductor.config.fallback_random = True "
            "keeps to these)",
        )
        return drawn.add_(APART * self.view.group.rank)


def _may_draw(given: Any) -> bool:
    """Return whether an operator or a graph may draw; any other function is assumed to."""
    if isinstance(given, torch.fx.GraphModule):
        graphs = [module for module in given.modules() if isinstance(module, torch.fx.GraphModule)]
        return any(
            isinstance(n.target, OpOverload) and _may_draw(n.target)
            for g in graphs
            for n in g.graph.nodes
        )
    if isinstance(given, OpOverload):
        return is_random(given)
    return callable(given) and not isinstance(given, Tensor)


def _dropping(func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return with what probability a kernel drops, and its arguments by name, with 0 for that.

    A kernel that does not say counts as 1, without arguments.
    """
    schema = func._schema.arguments
    given = {a.name: a.default_value for a in schema if a.has_default_value()}
    given |= dict(zip((a.name for a in schema), args, strict=False)) | kwargs
    name = next((n for n in DROPOUT if n in given), None)
    return (1.0, {}) if name is None else (given[name], given | {name: 0.0})


def _shape_of(name: str, args: Any) -> Any:
    """Return the shape of what is drawn, None for draws that cannot be made whole."""
    if name in FILL or (name in FILLED and len(args) > 1):
        by_tensor = any(isinstance(a, Tensor) and a.dim() for a in args[1:])
        return None if by_tensor else args[0].shape
    if name == "normal" and len(args) < 3:
        return torch.broadcast_shapes(*(x.shape for x in args if isinstance(x, Tensor)))
    if name in LIKE or (name == "native_dropout" and args[2] is not False):
        return args[0].shape
    if name in SHAPED:
        return args[0]
    if name in ("randint", "normal"):
        return next((a for a in args if isinstance(a, (list, tuple))), None)
    return None


def _device(args: Any, kwargs: dict[str, Any]) -> torch.device:
    if isinstance(args[0], Tensor):
        return args[0].device
    return torch.device(kwargs.get("device") or "cpu")
