"""Run an unmodified single-GPU PyTorch script data-parallel, with the numbers of one process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autoddp.comm.place import rank, world_size
    from autoddp.decorator import distributed
    from autoddp.training.rowwise import rowwise

__version__ = "0.2.0"
__all__ = ["__version__", "distributed", "rank", "rowwise", "world_size"]


def load_ipython_extension(session: Any) -> None:
    """Register `%%autoddp` in a notebook, for `%load_ext autoddp`."""
    from autoddp.decorator import cell_magic

    cell_magic.load(session)


if not TYPE_CHECKING:  # with it, a type checker would accept any attribute

    def __getattr__(name: str) -> Any:
        if name == "distributed":
            from autoddp.decorator import distributed

            return distributed
        if name == "rowwise":
            from autoddp.training.rowwise import rowwise

            return rowwise
        if name in ("rank", "world_size"):
            from autoddp.comm import place

            return getattr(place, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
