"""Random draws of sharded tensors: made for the whole batch, of which this rank keeps its rows.

So dropout masks and noise are those of one process, and every generator stays where one process's
would be. Drawing for the whole costs N times the drawing; above a size, `--draws auto` lets a rank
draw its own rows from a stream of its own, and says so.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor

from autoddp.torch_internals import DispatchMode, parts_of
from autoddp.view.local_call import LocalCall
from autoddp.view.redistribute import agreed_order, laid_out
from autoddp.view.shard_sizes import ShardSizes
from autoddp.view.streams import own_stream

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
# what is made of FILL where nothing is written in place; `normal` is another operator
FILLED = {name.rstrip("_") for name in FILL} - {"normal"}
DROPOUT = ("dropout_p", "dropout", "p")  # names of the probability in operators that drop inside


def is_random(func: Any) -> bool:
    """Return whether an operator draws from a generator."""
    return torch.Tag.nondeterministic_seeded in func.tags


class Draws(DispatchMode):
    """A mode in which what is drawn for local rows is drawn for the whole batch.

    Args:
        sizes: How many rows each rank holds.
        dim: The dimension along which they lie; a draw of another shape is searched for it.
    """

    def __init__(self, sizes: ShardSizes, dim: int = 0) -> None:
        super().__init__()
        self.sizes, self.dim, self.view = sizes, dim, sizes.view

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
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
        shape = _shape_of(name, args)
        dim = None if shape is None else self._batch_dim(shape)
        if dim is None or shape is None:
            return self._unknown(func, name, args, kwargs)
        if self._own(shape, args):
            with own_stream(self.view, _device(args, kwargs), kwargs.get("generator")):
                return func(*args, **kwargs)
        take = self.sizes.take
        if name in FILL:
            return args[0].copy_(take(func(self._grow(args[0], dim), *args[1:], **kwargs), dim))
        if name in FILLED:
            grown = func(self._grow(args[0], dim), *args[1:], **kwargs)
            return torch.empty_like(args[0]).copy_(take(grown, dim))
        if name in LIKE:
            return take(func(self._grow(args[0], dim), *args[1:], **kwargs), dim).contiguous()
        if name == "native_dropout":
            # the values there do not matter: this kernel alone tells what is dropped where
            mask = take(func(self._grow(args[0], dim), *args[1:])[1], dim).contiguous()
            return args[0] * mask / (1 - args[1]), mask
        if name == "normal" and len(args) < 3:
            return self._normal(shape, dim, *args, **kwargs)
        where = next(k for k, a in enumerate(args) if isinstance(a, (list, tuple)))
        grown = [*args]
        grown[where] = self._grown(shape, dim)
        return take(func(*grown, **kwargs), dim).contiguous()

    def _normal(
        self, shape: Any, dim: int, mean: Any, std: Any = 1.0, generator: Any = None
    ) -> Any:
        """Draw around these means, by the steps in which torch does."""
        like = mean if isinstance(mean, Tensor) else std
        whole = torch.empty(self._grown(shape, dim), dtype=like.dtype, device=like.device)
        spread = 1.0 if isinstance(std, Tensor) else std
        whole.normal_(0.0, spread, generator=generator)
        mine = self.sizes.take(whole, dim).contiguous()
        return (mine.mul_(std) if isinstance(std, Tensor) else mine).add_(mean)

    def _batch_dim(self, shape: Any) -> int | None:
        """Return the dimension that holds the batch, None if none has its size.

        It is where the input has it, if of that size, else the first of that size.
        """
        places = (self.dim, *range(len(shape)))
        here = self.sizes.local
        return next((d for d in places if d < len(shape) and shape[d] == here), None)

    def _grown(self, shape: Any, dim: int) -> list[int]:
        return [self.sizes.total if d == dim else size for d, size in enumerate(shape)]

    def _grow(self, x: Tensor, dim: int) -> Tensor:
        return laid_out(tuple(self._grown(x.shape, dim)), agreed_order(x, self.sizes), x)

    def _own(self, shape: Any, args: Any) -> bool:
        view = self.view
        if view.draws == "whole":
            return False
        if view.draws == "own":
            return True
        item = args[0].element_size() if isinstance(args[0], Tensor) else 4
        large = prod(shape) // max(self.sizes.local, 1) * self.sizes.total * item > MOST
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

        Such draws are never the same on all ranks, so each rank draws its own rows.

        Returns:
            What it gave; NotImplemented if it draws nothing for the batch.
        """
        inputs = [a for a in args if isinstance(a, Tensor) and a.dim()]
        if name in FILL | FILLED | LIKE or not inputs or self._batch_dim(inputs[0].shape) is None:
            return NotImplemented
        if not _dropping(func, args, kwargs):
            return NotImplemented
        self.view.report.doubt(
            "draws", "", f"{name} draws inside its kernel: each rank draws its own rows"
        )
        with own_stream(self.view, inputs[0].device):
            return func(*args, **kwargs)


class DrawingCall(LocalCall):
    """The decision to call a function on local parts whose draws are those of the whole batch.

    Args:
        call: Arguments of the `LocalCall`.
        drawn: Where what is drawn has the batch, and how many rows each rank holds of it.
        options: Keyword arguments of the `LocalCall`.
    """

    __slots__ = ("drawn",)

    def __init__(self, *call: Any, drawn: tuple[int, ShardSizes], **options: Any) -> None:
        super().__init__(*call, **options)
        self.drawn = drawn

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Call `func` on local parts under `Draws`."""
        dim, sizes = self.drawn
        with Draws(sizes, dim):
            return super().run(func, args, kwargs)


def _dropping(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Return with what probability a kernel drops; one that does not say counts as 1."""
    schema = func._schema.arguments
    given = {a.name: a.default_value for a in schema if a.has_default_value()}
    given |= dict(zip((a.name for a in schema), args, strict=False)) | kwargs
    return next((given[n] for n in DROPOUT if n in given), 1.0)


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
