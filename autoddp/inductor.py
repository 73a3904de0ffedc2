"""Inductor, torch's compiler: graphs are compiled by it, and draw the rows that they keep."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from math import prod
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node


def settings_of(mode: str | None) -> dict[str, Any]:
    """Return inductor's options for a mode of `torch.compile`."""
    from torch._inductor import list_mode_options

    return list_mode_options(mode or "default")


def compiled(
    module: Any,
    example: list[Any],
    settings: dict[str, Any],
    around: Callable[[], AbstractContextManager[None]],
) -> Any:
    """Compile a module for such inputs with inductor.

    The backward pass is compiled when it first runs. All compilation runs inside `around()`.
    """
    from torch._inductor import compile_fx

    def inner(graph: GraphModule, *args: Any, **kwargs: Any) -> Any:
        with around():
            draw_rows(graph.graph)
            return compile_fx.compile_fx_inner(graph, *args, **kwargs)

    return compile_fx.compile_fx(module, example, inner_compile=inner, config_patches=settings)


def draw_rows(graph: Graph) -> None:
    """Draw only the rows that a graph keeps of a draw for the whole batch.

    Inductor draws an element by its index in the whole, so that no rank needs other rows.
    """
    from torch._inductor import inductor_prims

    for draw in graph.find_nodes(op="call_function", target=inductor_prims.random):
        chain = [draw]
        while len(chain[-1].users) == 1:
            (user,) = chain[-1].users
            if user.target is torch.ops.aten.slice.Tensor:
                _draw_slice(graph, chain, user)
                break
            tags = getattr(user.target, "tags", ())
            if torch.Tag.pointwise not in tags or len(user.all_input_nodes) > 1:
                break
            chain.append(user)


def _draw_slice(graph: Graph, chain: list[Node], cut: Node) -> None:
    """Replace a draw by the rows of it that the slice at the end of a chain keeps."""
    draw, kept, whole = chain[0], cut.meta["val"].shape, chain[0].meta["val"].shape
    dim, first, *rest = (*cut.args[1:], 0, 0)[: max(2, len(cut.args) - 1)]
    if dim or rest[1:] or kept == whole or not all(type(n) is int for n in whole):
        return  # other dimensions, steps, all rows, symbolic sizes
    start = slice(first, None).indices(whole[0])[0]
    args = list(kept), *draw.args[1:3], start * prod(whole[1:])
    with graph.inserting_before(draw):
        rows = graph.call_function(_operator(), args)
    rows.meta = dict(draw.meta)
    draw.replace_all_uses_with(rows)
    for node in (rows, *chain[1:]):
        node.meta["val"] = node.meta["val"][: kept[0]]
    cut.replace_all_uses_with((rows, *chain[1:])[-1])
    graph.erase_node(cut)
    graph.erase_node(draw)


@cache
def _operator() -> Any:
    """Register the operator `draw(size, seed, mode, offset)`, which inductor's own one lacks.

    The offset is added to the index by which an element is drawn.
    """
    from torch._inductor import lowering

    name = "autoddp_inductor::draw"
    torch.library.define(name, "(SymInt[] size, Tensor seed, str mode, int offset) -> Tensor")
    fake = torch.library.register_fake(name)
    fake(lambda size, seed, mode, offset: seed.new_empty(size, dtype=torch.float32))
    operator = torch.ops.autoddp_inductor.draw.default

    def lower(size: Any, seed: Any, mode: str, offset: int) -> Any:
        return lowering.inductor_random(size, seed, mode, offset=offset)

    lowering.register_lowering(operator, type_promotion_kind=None)(lower)
    return operator
