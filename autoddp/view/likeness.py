"""A class that is torch.Tensor to whoever asks for its name or compares it."""

from __future__ import annotations

from torch import Tensor


class Like(type(Tensor)):  # type: ignore[misc]  # torch's stub does not know it for a class
    """A metaclass: to a script its types are torch.Tensor by name and `==`; by `is` none can be."""

    def __eq__(cls, other: object) -> bool:
        return other is Tensor or cls is other

    __hash__ = type.__hash__  # registries of types (copyreg, pytree) still tell it from a Tensor
