"""Views of whole parameters, and what else is in the memory of one: writes reach the shards."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor

from autoddp.torch_internals import plain_tensors
from autoddp.training.parameters.layout import Geometry
from autoddp.training.parameters.saving import pickled_by_torch
from autoddp.training.parameters.shard import CLASS, Held
from autoddp.view.sharded_tensor import TensorType

REGION = "_autoddp_region"  # the attribute of a view with its `Region`
MEMORY = ("untyped_storage", "_typed_storage", "storage", "data_ptr")


class Region:
    """A whole parameter that the script has a view of.

    Attributes:
        of: What this rank holds of the parameter.
        whole: The whole, whose memory the views share.
        seen: The writes into the shard, and its version, that it has seen.
    """

    def __init__(self, of: Held, whole: Tensor) -> None:
        self.of, self.whole, self.seen = of, whole, of.written()
        of.memory.used_by(self)

    def refresh(self) -> None:
        """Copy what was written into the shards since."""
        if self.seen != self.of.written():
            self.whole.data.copy_(self.of.wholes.plain(self.of))
            self.seen = self.of.written()

    def offset(self, view: Tensor) -> int:
        """Return where a view begins in the memory of its parameter, in its own elements."""
        with plain_tensors():
            start = self.whole.storage_offset() * self.whole.element_size()
            return int(view.storage_offset() - start // view.element_size())


class Alias(Tensor, metaclass=TensorType):
    """A view of a whole parameter: what is written into it is written into the shards.

    `functions.py` defines its functions.
    """

    @property  # type: ignore[misc]
    def __class__(self) -> type[Tensor]:  # type: ignore[override]
        return Tensor

    def __deepcopy__(self, memo: dict[Any, Any]) -> Any:
        """Return a copy in memory of its own."""
        region = self.__dict__.pop(REGION)
        region.refresh()
        CLASS.__set__(self, Tensor)
        try:
            return copy.deepcopy(self, memo)
        finally:
            CLASS.__set__(self, Alias)
            self.__dict__[REGION] = region

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle the view of a parameter that has memory of its own."""
        with plain_tensors():
            needs = self.requires_grad
        made = (written_view if pickled_by_torch() else separate_view)(self)
        return made.requires_grad_(needs).__reduce_ex__(protocol)


def separate_view(x: Any, whole_of: Any = None) -> Tensor:
    """Return a view of a parameter as one of memory that has no other parameter."""
    region: Region = x.__dict__[REGION]
    whole = (whole_of or region.of.wholes.separate)(region.of)
    with plain_tensors():
        return Geometry(x).at(whole, region.offset(x))


def written_view(x: Any) -> Tensor:
    """Return a view of a parameter for a file that is being written."""
    return separate_view(x, x.__dict__[REGION].of.wholes.written)


def _of_memory(function: Any) -> Any:
    return lambda x: function(separate_view(x, x.__dict__[REGION].of.wholes.addressed))


OF_MEMORY = {getattr(Tensor, name): _of_memory(getattr(Tensor, name)) for name in MEMORY}
OF_MEMORY[Tensor.storage_offset] = lambda x: x.__dict__[REGION].offset(x)
Alias.__name__, Alias.__qualname__, Alias.__module__ = "Tensor", "Tensor", "torch"
