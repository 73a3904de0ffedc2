"""Plans for loading a data set: each rank its rows, one rank for its node, or every rank all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import default_collate

from autoddp.training.loading.generators import DRAWS, OWN
from autoddp.training.loading.in_memory import without_subsets

ROWS, SHARED, EACH = "rows", "shared", "each"
THREAD = "it is iterated in a thread of the script"
HERE = "its tensors are in memory, and no workers start"
MORE = "its batches hold more than numbers"
REASONS = ("", DRAWS, MORE, OWN)  # against rows; the last one that holds is reported


@dataclass(eq=False)
class Plan:
    """The way in which a data set is loaded, and the reason if it is not by rows.

    Attributes:
        unlike: The reason against rows that the loader itself shows.
        confirmed: Whether it is by rows for good, as the first batch has shown.
        late_draws: What a later fetch on this rank drew from, in words.
        generators: The random generators that are objects; None if the data set draws nothing.
        here: Whether ranks fetch what workers would send.
    """

    where: str
    way: str = ROWS
    reason: str = ""
    unlike: str = ""
    confirmed: bool = False
    late_draws: str = ""
    generators: list[Any] | None = None
    here: bool = False

    def describe(self) -> str:
        """Return the plan in words."""
        how = {
            ROWS: "each rank fetches its rows",
            SHARED: "loaded once on each node, for all of its ranks",
            EACH: "every rank loads all",
        }[self.way]
        return f"{how}: {self.reason}" if self.reason else how


def unlike_rows(loader: Any) -> str:
    """Return why a loader cannot be loaded by rows, or an empty string."""
    if isinstance(loader.dataset, IterableDataset):
        return "its data set is an iterable"
    if not loader._auto_collation:
        return "it makes no batches (batch_size=None)"
    if loader.collate_fn is not default_collate:
        return "it has a collate function of its own"
    own = callable(getattr(without_subsets(loader.dataset), "__getitems__", None))
    return "its data set fetches a batch by a function of its own" if own else ""


def hands_out(loader: Any) -> bool:
    """Return whether a batch may hold objects of the data set itself, which the script may change.

    Workers send copies, and torch's own function to collate makes new tensors.
    """
    return not loader.num_workers and not (
        loader._auto_collation and loader.collate_fn is default_collate
    )


def own_iterator(loader: Any) -> bool:
    """Return whether a subclass of DataLoader overrides `_get_iterator`."""
    return type(loader)._get_iterator is not DataLoader._get_iterator


def owner(loader: Any) -> Any:
    """Return the key of a plan: the data set, which loaders may share, or else the loader."""
    kind: Any = type(loader.dataset)
    plain = kind.__hash__ is object.__hash__ and kind.__weakrefoffset__ > 0
    return loader.dataset if plain else loader
