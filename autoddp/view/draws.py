"""Random draws for sharded tensors: each rank draws for the whole batch and keeps its own rows.

Dropout masks, noise and the states of generators are therefore those of one process, but N ranks
draw N times as many numbers. With `--draws auto`, each rank draws only its rows, from a stream of
its own, if a draw exceeds `MAX_WHOLE_DRAW` bytes; a line reports this.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from autoddp.comm import accelerator
from autoddp.torch_internals import DispatchMode, parts_of
from autoddp.view.local_call import LocalCall
from autoddp.view.redistribute import agreed_strides
from autoddp.view.shard_sizes import ShardSizes

if TYPE_CHECKING:
    from autoddp.view.state import View

MAX_WHOLE_DRAW = 64 * 2**20  # bytes
FILL = (
    *("uniform_", "normal_", "exponential_", "bernoulli_", "random_", "log_normal_"),
    *("geometric_", "cauchy_"),
)
LIKE = ("rand_like", "randn_like", "randint_like")
DROPOUT = ("dropout_p", "dropout", "p")  # names of the probability in operators with dropout


class Draws(DispatchMode):
    """A mode that replaces draws for local rows by draws for the whole batch.

    Args:
        sizes: The number of rows on each rank.
        dim: The shard dimension; if a draw has another size there, the first dimension that fits.
        layouts: The strides of the whole tensors that are drawn for, in order, if known.
    """

    def __init__(self, sizes: ShardSizes, dim: int = 0, layouts: Any = ()) -> None:
        super().__init__()
        self.sizes, self.dim, self.view, self.layouts = sizes, dim, sizes.view, [*layouts]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.is_inference_mode_enabled():
            # inference mode dispatches composite operators before they are decomposed into draws
            parts = parts_of(self, func, *args, **kwargs)
            if parts is not NotImplemented:
                return parts
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        drawn = self._draw(func, func.overloadpacket.__name__, args, kwargs)
        return func(*args, **kwargs) if drawn is NotImplemented else drawn

    def _draw(self, func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        known = _is_elementwise(name, args)
        dim = self._batch_dim(args[0].shape, self.sizes.local) if known else None
        if dim is None:
            return self._draw_inside_kernel(func, name, args, kwargs)
        if self._draws_own_rows(args[0]):
            with own_stream(self.view, args[0].device):
                return func(*args, **kwargs)
        drawn = func(self._empty_whole(args[0], dim), *args[1:], **kwargs)
        if name in FILL:
            return args[0].copy_(self.sizes.shard(drawn, dim))
        if name in LIKE:
            return self._rows(drawn, dim)
        # the kernel is called only for its mask; the values of its input do not matter
        mask = self._rows(drawn[1], dim)
        return args[0] * mask / (1 - args[1]), mask

    def _rows(self, drawn: Tensor, dim: int) -> Tensor:
        """Return this rank's rows in memory of their own: a view would keep the whole batch's."""
        return self.sizes.shard(drawn, dim).clone()

    def _batch_dim(self, shape: Any, rows: int) -> int | None:
        """Return the batch's dimension in a shape: `dim` if its size fits, else the first fit."""
        candidates = (self.dim, *range(len(shape)))
        return next((d for d in candidates if d < len(shape) and shape[d] == rows), None)

    def _empty_whole(self, x: Tensor, dim: int) -> Tensor:
        """Return an uninitialised whole batch, in the layout by which torch draws."""
        shape = (*x.shape[:dim], self.sizes.total, *x.shape[dim + 1 :])
        known = self.layouts.pop(0) if self.layouts else ()
        strides = known if len(known) == x.dim() else agreed_strides(x, self.sizes, dim)
        return torch.empty_strided(shape, strides, dtype=x.dtype, device=x.device)

    def _draws_own_rows(self, x: Tensor) -> bool:
        view = self.view
        if view.draws == "whole":
            return False
        if view.draws == "own":
            return True
        large = x.nbytes // max(self.sizes.local, 1) * self.sizes.total > MAX_WHOLE_DRAW
        if large:
            view.report.doubt(
                "draws",
                "",
                "draws above 64 MB: each rank draws its own rows (statistically the same numbers, "
                "not those of one process; --draws whole draws them all)",
            )
        return large

    def _draw_inside_kernel(self, func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run a kernel that draws internally, such as attention with dropout on a GPU.

        Its draws cannot be those of one process: each rank draws for its own rows. Return
        NotImplemented for a kernel that draws nothing for the batch.
        """
        inputs = [a for a in args if isinstance(a, Tensor) and a.dim()]
        if (
            name in (*FILL, *LIKE)
            or not inputs
            or self._batch_dim(inputs[0].shape, self.sizes.local) is None
        ):
            return NotImplemented
        if not _dropout_probability(func, args, kwargs):
            return NotImplemented
        self.view.report.doubt(
            "draws", "", f"{name} draws inside its kernel: each rank draws its own rows"
        )
        with own_stream(self.view, inputs[0].device):
            return func(*args, **kwargs)


class Recording(Draws):
    """A mode that lets functions draw for the whole batch, and notes what they draw for.

    Attributes:
        layouts: The strides of these tensors, in order.
    """

    def _draw(self, func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        known = _is_elementwise(name, args)
        if known and self._batch_dim(args[0].shape, self.sizes.total) is not None:
            self.layouts.append(args[0].stride())
        return NotImplemented


def _is_elementwise(name: str, args: Any) -> bool:
    """Return whether an operator draws a number for each element of its first argument."""
    if name == "native_dropout":
        return args[2] is not False
    by_tensor = any(isinstance(x, Tensor) and x.dim() for x in args[1:])
    return name in LIKE or (name in FILL and not by_tensor)


class DrawingCall(LocalCall):
    """The decision to call a function on local shards, with draws for the whole batch.

    Args:
        call: Arguments of the `LocalCall`.
        drawn: The placement of the drawn tensor.
        options: Keyword arguments of the `LocalCall`.
    """

    __slots__ = ("drawn",)
    draws = True

    def __init__(self, *call: Any, drawn: tuple[int, ShardSizes], **options: Any) -> None:
        super().__init__(*call, **options)
        self.drawn = drawn

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Call `func` on local shards under `Draws`."""
        if self.single:
            return super().run(func, args, kwargs)
        dim, sizes = self.drawn
        with Draws(sizes, dim):
            return super().run(func, args, kwargs)

    def compute(self, func: Any, given: Any, kwargs: Any, drawn: Any) -> Any:
        """Return the local results; `drawn` are the strides of the wholes that are drawn for."""
        dim, sizes = self.drawn
        with Draws(sizes, dim, drawn):
            return func(*given, **kwargs)

    def rehearse(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, list[Any]]:
        """Return the results of the whole batch, and the strides of what was drawn for."""
        dim, sizes = self.drawn
        devices = {torch.device("cpu"), *(x.device for x in args if isinstance(x, Tensor))}
        before = {device: accelerator.state(accelerator.at(device)) for device in devices}
        try:
            with Recording(sizes, dim) as recorded:
                return func(*args, **kwargs), recorded.layouts
        finally:
            for device, state in before.items():
                accelerator.set_state(accelerator.at(device), state)


def _dropout_probability(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Return the probability of dropout in an operator; 1 if it has no such argument."""
    schema = func._schema.arguments
    values = {a.name: a.default_value for a in schema if a.has_default_value()}
    values |= dict(zip((a.name for a in schema), args, strict=False)) | kwargs
    return next((values[n] for n in DROPOUT if n in values), 1.0)


@contextmanager
def own_stream(view: View, device: torch.device) -> Iterator[None]:
    """Draw from this rank's own stream inside the context, and restore the script's generator."""
    if view.tracing:
        raise NotImplementedError("each rank draws its own rows")
    target = accelerator.at(device)
    script_state, own_state = accelerator.state(target), view.streams.get(target)
    if own_state is None:
        seed = torch.initial_seed() + 7919 * (view.group.rank + 1)
        own_state = torch.Generator(target).manual_seed(seed).get_state()
    accelerator.set_state(target, own_state)
    try:
        yield
    finally:
        view.streams[target] = accelerator.state(target)
        accelerator.set_state(target, script_state)
