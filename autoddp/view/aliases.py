"""The memory that sharded tensors share: a tensor and its views have one base, values and graph.

As in torch's functionalization, a view is a path of functions from its base. The base has local
rows and, once it was gathered, a whole, and any view of either is made by the path. So torch itself
carries a write through one view to all others, and only two tensors are kept equal here: what was
written into the whole, plain tensors of the script among its views, is copied to the rows before
they are read again, and a write into the rows is gathered if the script may hold such a tensor.
Both are copies in place that autograd records, so a gradient takes the way of the values.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from autoddp.report import users_line
from autoddp.torch_internals import FunctionalTensor, outside_transforms, transform
from autoddp.view.redistribute import Gather, all_gather_rows, gather, same_mode, shard

if TYPE_CHECKING:
    from autoddp.view.shard_sizes import Spec

RAW = {
    "numpy", "__array__", "__dlpack__", "data_ptr", "const_data_ptr",
    "storage", "_typed_storage", "untyped_storage", "__get__", "__reduce_ex__",
    "_to_dlpack",
}  # fmt: skip
COMPARED = (
    "the script holds the memory of a batch, where writes cannot be tracked: each later use of the "
    "batch copies its rows from there; pass batch.clone() instead"
)
LEAF = "a view of a leaf Variable that requires grad is being used in an in-place operation."


# what makes a view: a function, its other arguments, by position and name, which of its results is
# meant, if there are several, and whether gradients were enabled
Step = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], int | None, bool]
Path = tuple[Step, ...]


def along(path: Path, whole: Tensor) -> Tensor:
    """Return the view of `whole` that the path makes."""
    if not path:
        return whole
    with outside_transforms() if transform() else nullcontext(), same_mode(whole):
        for func, rest, kwargs, item, grad in path:
            with torch.set_grad_enabled(grad):
                made = func(whole, *rest, **(kwargs or {}))
            whole = made if item is None else made[item]
    return whole


class Base:
    """A sharded tensor that is no view of another one with a graph.

    Args:
        rows: The local rows.
        spec: Their placement, and the shape of the whole.
        source: The base, and the path from it, with which `rows` shares memory but no graph: it is
            detached. Such bases share the memory of their wholes, too.
        own_version: Whether it is the source's `.data`, with a version counter of its own.

    Attributes:
        whole: All rows, with a graph like that of `rows`; None until it is needed.
        exported: Whether the script may hold plain tensors that are views of the whole.
        raw: Whether the script may write there without torch seeing it.
        counted: How many elements of the whole are not some value: the version of the rows for
            which that holds, the value, and the number; None if nobody has counted them.
    """

    whole: Tensor | None = None
    node: Any = None  # the whole's, before the script writes into it
    seen = (-1, -1)  # versions of rows and whole when they were equal
    # of the base without a source, which stands for all in this memory
    exported = raw = False
    writes = 0
    counted: tuple[int, int, int] | None = None
    copies: weakref.WeakValueDictionary[int, Tensor] | None = None  # by `id`: views gathered alone
    detached: weakref.WeakValueDictionary[int, Base] | None = None  # by `id`, in order

    def __init__(
        self,
        rows: Tensor,
        spec: Spec,
        source: tuple[Base, Path] | None = None,
        own_version: bool = False,
    ) -> None:
        self.rows, self.spec, self.source, self.own_version = rows, spec, source, own_version

    @property
    def root(self) -> Base:
        """Return the base of which all others in this memory were detached."""
        base = self
        while base.source is not None:
            base = base.source[0]
        return base

    def gathered_alone(self, rows: Tensor, spec: Spec) -> Tensor:
        """Gather a view, `rows` in this root's memory, into memory of its own."""
        whole = gather(rows, spec, rows.requires_grad and torch.is_grad_enabled())
        if self.copies is None:
            self.copies = weakref.WeakValueDictionary()
        self.copies[id(whole)] = whole
        return whole

    def gathered(self) -> Tensor:
        """Return the whole; one all-gather serves until the rows are written."""
        whole, rows = self.whole, self.rows
        if whole is not None and self.seen[0] != version(rows):
            self.wrote()
            whole = self.whole
        if whole is None or (rows.requires_grad and not whole.requires_grad):
            whole = self._gather(whole)
        return whole

    def _gather(self, known: Tensor | None) -> Tensor:
        """All-gather the rows, unless their whole is `known` or the source has it."""
        if known is None and self.source is not None:
            base, path = self.source
            known = along(path, base.gathered())
            known = known.data if self.own_version else known.detach()
        needs = self.rows.requires_grad and not self.rows.is_inference()
        if known is None or needs:
            known = gather(self.rows, self.spec, needs, known)
        self.keep(known)
        if self.source is not None:
            root = self.root
            if root.detached is None:
                root.detached = weakref.WeakValueDictionary()
            root.detached[id(self)] = self
        return known

    def keep(self, whole: Tensor) -> None:
        """Use `whole`, which equals the rows, as the whole."""
        self.whole, self.node = whole, whole.grad_fn
        self.seen = (version(self.rows), version(whole))

    def drop_graph(self) -> None:
        """Take the graph from the whole, as it was taken from the rows."""
        if self.whole is not None and self.whole.requires_grad:
            self.keep(self.whole.detach())

    def export(self, whole: Tensor, name: str) -> None:
        """Note that the script holds a view of the whole, or its memory by the function `name`."""
        root = self.root
        root.exported = True
        # a view on a CPU can become an array, and one of `x.data` has a version of its own
        raw = whole.device.type == "cpu" or name in RAW or self.own_version
        if raw and whole.device.type != "cpu":
            self.spec.view.report.say_once("raw memory", users_line(), COMPARED)
        if raw:
            root.raw = True
            self.spec.view.held.add(root)

    def _all(self) -> list[Base]:
        """Return the bases in this memory that have a whole, with this one as their root."""
        found = [self, *(self.detached or {}).values()]
        return [base for base in found if base.whole is not None]

    def sync(self, untracked: bool = False) -> None:
        """Copy into the rows what the script has written into the whole.

        Args:
            untracked: Whether it may have been written without a new version.
        """
        root = self.root
        if root.whole is None:
            return
        bases = root._all()
        written = [base for base in bases if version(base.whole) != base.seen[1]]
        for base in written:
            base._pull()
        if not written and (untracked or root.raw or root.whole.is_inference()):
            root._pull_values()
        if written:
            root.outdate()
            for base in bases:
                base.seen = (version(base.rows), version(base.whole))

    def _pull(self) -> None:
        """Copy the whole to the rows; autograd records it."""
        rows, whole = self.rows, self.whole
        assert whole is not None
        leaf = rows.requires_grad and rows.is_leaf
        if leaf and whole.grad_fn is not self.node:
            raise RuntimeError(LEAF)
        graph = not leaf and (rows.requires_grad or whole.requires_grad)
        with same_mode(rows), torch.set_grad_enabled(graph):
            rows, new = once(rows, shard(whole, self.spec.sizes, self.spec.dim))
            rows.copy_(new)
        self.node = whole.grad_fn

    def _pull_values(self) -> None:
        """Copy values alone, without a new version: one process has none either."""
        assert self.whole is not None
        with outside_transforms() if transform() else nullcontext():
            new = shard(self.whole.detach(), self.spec.sizes, self.spec.dim)
            rows, new = once(self.rows.data, new)
            if rows.data_ptr() != new.data_ptr() or rows.stride() != new.stride():
                if self.copies and not torch.equal(rows, new):
                    self.outdate()
                with same_mode(self.rows):
                    rows.copy_(new)

    def outdate(self) -> None:
        """Note a write into this memory: views of this root that were gathered alone are stale."""
        self.writes += 1
        for copy in (self.copies or {}).values():
            forget(copy)
        self.copies = None

    def wrote(self) -> None:
        """Note that all ranks have written into the rows: the whole is stale."""
        root = self.root
        root.outdate()
        if root.whole is None:
            return
        if not root.exported:
            for base in root._all():
                forget(base.whole)
                base.whole = None
            root.detached = None
            return
        whole = self._gather(None) if self.whole is None else self.whole
        rows = self.rows
        with same_mode(whole):
            graph = rows.requires_grad and torch.is_grad_enabled()
            with torch.set_grad_enabled(graph):
                function = Gather.apply if graph else all_gather_rows
                given = rows if graph else rows.detach()
                kept, new = once(whole, function(given, self.spec.sizes, self.spec.dim))
                kept.copy_(new)
        self.node = whole.grad_fn
        for base in root._all():
            base.seen = (version(base.rows), version(base.whole))


def once(rows: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    """Return both without the copies of expanded dimensions, which torch refuses to write."""
    for dim, (size, stride) in enumerate(zip(rows.shape, rows.stride(), strict=True)):
        if size > 1 and not stride:
            rows, new = rows.narrow(dim, 0, 1), new.narrow(dim, 0, 1)
    return rows, new


def forget(whole: Tensor | None) -> None:
    """Mark a stale whole as written, so that a graph that has saved it raises torch's error."""
    if whole is not None and not whole.is_inference():
        torch.autograd.graph.increment_version(whole)


def exposes(out: Any, whole: Tensor, name: str) -> bool:
    """Return whether the result `out` gives the script access to the memory of `whole`."""
    if name == "__reduce_ex__":
        return True  # copy.copy() and multiprocessing queues share the memory
    if isinstance(out, (list, tuple)):
        return any(exposes(o, whole, name) for o in out[:1])  # the same holds for all parts
    if isinstance(out, Tensor) and out.layout is torch.strided:
        return memory_of(out) == memory_of(whole)
    return not isinstance(out, Tensor) and name in RAW


def memory_of(x: Tensor) -> int | None:
    """Return an identifier of the storage of `x`; None if it has none."""
    if x.layout is not torch.strided:
        return None
    try:
        storage: Any = x.untyped_storage()  # that of a FunctionalTensor has no address
    except NotImplementedError:  # a transform of `torch.func` has wrapped it, and refuses writes
        return None
    return storage._cdata if isinstance(x, FunctionalTensor) else storage.data_ptr()


def shares_memory(out: Tensor, local: Tensor) -> bool:
    """Return whether an inference tensor, of which autograd keeps nothing, is a view of another."""
    return out.is_inference() and memory_of(out) == memory_of(local)


def version(x: Tensor | None) -> int:
    """Return the version counter of `x`; -1 for an inference tensor, which has none."""
    return -1 if x is None or x.is_inference() else x._version
