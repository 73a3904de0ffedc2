"""Draws in compiled graphs: a rank draws the rows that it keeps, and no others."""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor import inductor_prims
from torch.fx.experimental.proxy_tensor import make_fx

from autoddp.inductor import draw_rows
from tests.support.ranks import run_ranks

DRAW, WHOLE = "autoddp_inductor.draw.default", "prims.inductor_random.default"


def kept(x: Any) -> Any:
    return (x * 2 > 0.3)[-4:5]


CASES = [
    (kept, (DRAW, [3, 4], 8)),  # third to fifth row, behind 8 elements
    (lambda x: x[:, 1:3], (WHOLE, [6, 4], "rand")),  # no rows that follow each other
    (lambda x: x[::2], (WHOLE, [6, 4], "rand")),
    (lambda x: (x, x[:2]), (WHOLE, [6, 4], "rand")),  # the script has all of it
    (lambda x: kept(x + x.new_ones(6, 4).cumsum(0)), (WHOLE, [6, 4], "rand")),
]


def draws(group: Any, case: int) -> Any:
    """What a graph draws, and the shapes in it."""
    uses, _ = CASES[case]
    traced = make_fx(lambda seed: uses(inductor_prims.random([6, 4], seed, "rand")), {}, "fake")
    graph = traced(torch.tensor(0)).graph
    draw_rows(graph)
    graph.lint()
    nodes = [n for n in graph.nodes if n.op == "call_function"]
    found = [n for n in nodes if str(n.target) in (DRAW, WHOLE)]
    shapes = {tuple(n.meta["val"].shape) for n in nodes}
    return [(str(n.target), n.args[0], n.args[-1]) for n in found], shapes


def test_a_graph_draws_the_rows_that_it_keeps() -> None:
    for case, (_, drawn) in enumerate(CASES):
        # a fork: the compiler starts autograd's threads
        ((found, shapes),) = run_ranks(draws, 1, case)
        assert found == [drawn], case
        assert drawn[0] == WHOLE or shapes == {(3, 4)}
