"""Batches of a data set whose tensors are in memory, by one indexing for each tensor.

torch's loader indexes each tensor once for each row, and stacks the rows; its workers send each
batch through a queue. With small rows, that takes longer than a step of a small model. One
`index_select` has the same bits. Whatever it is not made for is left to torch.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, multiprocessing
from torch.utils.data import DataLoader, Subset, TensorDataset, dataloader
from torch.utils.data._utils.collate import default_collate_fn_map as collated_by
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data.dataloader import _BaseDataLoaderIter, _MultiProcessingDataLoaderIter

from autoddp.comm.accelerator import CPU
from autoddp.torch_internals import dispatch_depth, function_depth, no_dispatch, no_torch_function

known: Any = dataloader  # torch's types leave some of its names out
MOST_COPIED = 1 << 28  # bytes of a data set that all ranks copy, together
MOST_FETCHED = 1 << 22  # bytes of a batch, which a rank indexes in a millisecond
OF_TORCH = TensorDataset.__getitem__, Subset.__getitems__, collated_by[Tensor]


def in_memory(dataset: Any) -> bool:
    """Return whether a data set is torch's `TensorDataset`, or a subset of one."""
    dataset = without_subsets(dataset)
    return type(dataset) is TensorDataset and all(type(t) is Tensor for t in dataset.tensors)


def without_subsets(dataset: Any) -> Any:
    """Return the data set of which this one is a `Subset`, or of a subset; else itself."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    return dataset


def located(dataset: Any, indices: list[Any]) -> tuple[Any, list[Any]]:
    """Return a data set without its subsets, and the indices there."""
    while type(dataset) is Subset:
        dataset, indices = dataset.dataset, [dataset.indices[k] for k in indices]
    return dataset, indices


def _is_plain(x: Tensor) -> bool:
    """Return whether rows of a tensor are copied by one indexing as `torch.stack` copies them."""
    special = x.is_quantized or x.is_nested or x.is_complex() or x.requires_grad
    return type(x) is Tensor and x.is_cpu and x.layout is torch.strided and not special


class MemoryFetcher:
    """Fetches batches of a data set that is `in_memory`, in place of torch's own fetcher.

    Args:
        dataset: The data set.
        plain: torch's fetcher, for all that is not indexed in one go, and for errors.
    """

    def __init__(self, dataset: Any, plain: Any) -> None:
        self.dataset, self.plain = dataset, plain

    def fetch(self, indices: list[Any]) -> Any:
        """Return the batch of these indices."""
        try:
            dataset, places = located(self.dataset, indices)
            # a mode of the script sees what torch's fetcher calls
            seen = dispatch_depth() or function_depth()
            kinds: set[Any] = {*map(type, places)} - {int}
            numbers = all(issubclass(kind, Integral) and kind is not bool for kind in kinds)
            if numbers and not seen and places and all(map(_is_plain, dataset.tensors)):
                rows = torch.tensor(places, device=CPU)
                return [x.index_select(0, rows) for x in dataset.tensors]
        except (LookupError, RuntimeError):  # as of negative indices
            pass
        return self.plain.fetch(indices)


def fetcher(loader: Any, dataset: Any) -> Any:
    """Return what fetches batches of a loader from a data set that is `in_memory`."""
    kind = loader._dataset_kind
    plain = dataloader._DatasetKind.create_fetcher(
        kind, dataset, loader._auto_collation, loader.collate_fn, loader.drop_last
    )
    now = TensorDataset.__getitem__, Subset.__getitems__, collated_by.get(Tensor)
    return MemoryFetcher(dataset, plain) if now == OF_TORCH else plain


class InProcess(_MultiProcessingDataLoaderIter):
    """An iterator of a loader with workers whose batches this process fetches itself.

    As in one process, indices are drawn ahead, at the same moments, and batches are of the data set
    as it is when workers would start: a script may write to its tensors afterwards.
    """

    def __init__(self, loader: Any) -> None:
        _BaseDataLoaderIter.__init__(self, loader)
        self._prefetch_factor = loader.prefetch_factor
        self._workers = list[Any]()
        with no_torch_function(), no_dispatch():
            self._fetcher = fetcher(loader, _copied(loader.dataset))
        self._reset(loader, True)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        _BaseDataLoaderIter._reset(self, loader, first_iter)
        self._sent, self._fetched = deque[Any](), 0
        for _ in range(self._prefetch_factor * self._num_workers):
            self._send()

    def _send(self) -> None:
        with suppress(StopIteration):
            self._sent.append(self._next_index())

    def _next_data(self) -> Any:
        if not self._sent:
            raise StopIteration
        number, indices, failed = self._fetched % self._num_workers, self._sent.popleft(), None
        try:
            batch = self._fetcher.fetch(indices)
        except Exception:  # with the words of a worker
            where = f"in DataLoader worker process {number}"
            failed = known.ExceptionWrapper(where=where)
        self._fetched += 1
        self._send()
        if failed is not None:
            failed.reraise()
        return pin_memory(batch, self._pin_memory_device) if self._pin_memory else batch

    def _shutdown_workers(self) -> None:
        """There are none."""


def _copied(dataset: Any) -> Any:
    """Return a data set with a copy of its tensors and indices."""
    if type(dataset) is Subset:
        places = dataset.indices
        simple = type(places) is list and {*map(type, places)} <= {int}
        return Subset(_copied(dataset.dataset), [*places] if simple else copy.deepcopy(places))
    return TensorDataset(*(x.clone() for x in dataset.tensors))


def needs_no_workers(loader: Any, ranks: int) -> bool:
    """Return whether a rank, of so many, fetches sooner than workers would send.

    Args:
        loader: A DataLoader with workers, whose data set is `in_memory`.
        ranks: The number of ranks, each with a copy.
    """
    tensors = without_subsets(loader.dataset).tensors
    # what a worker of another kind imports may print; memory that is shared may be written to
    forks = (loader.multiprocessing_context or multiprocessing).get_start_method() == "fork"
    plain = all(_is_plain(x) and not x.is_shared() for x in tensors)
    if not (forks and plain and loader.worker_init_fn is None and loader.batch_size):
        return False
    size = sum(x.numel() * x.element_size() for x in tensors)
    rows = max(1, len(tensors[0]))
    return size * ranks <= MOST_COPIED and size * loader.batch_size <= MOST_FETCHED * rows


@contextmanager
def in_process(loader: DataLoader[Any]) -> Iterator[None]:
    """Let an iterator that is made inside be `InProcess`."""
    object.__setattr__(loader, "_get_iterator", lambda: InProcess(loader))
    try:
        yield
    finally:
        object.__delattr__(loader, "_get_iterator")
