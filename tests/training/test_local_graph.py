"""Draws in compiled graphs: a rank draws the rows that it keeps, and no others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._inductor import inductor_prims
from torch.fx.experimental.proxy_tensor import make_fx

from autoddp.training.local_graph import Operators

DRAW, WHOLE = "autoddp.draw.default", "prims.inductor_random.default"


def kept(x: Any) -> Any:
    return (x * 2 > 0.3)[-4:5]


@pytest.mark.parametrize(
    ("uses", "drawn"),
    [
        (kept, (DRAW, [3, 4], 8)),  # third to fifth row, behind 8 elements
        (lambda x: x[:, 1:3], (WHOLE, [6, 4], "rand")),  # no rows that follow each other
        (lambda x: x[::2], (WHOLE, [6, 4], "rand")),
        (lambda x: (x, x[:2]), (WHOLE, [6, 4], "rand")),  # the script has all of it
        (lambda x: kept(x + x.new_ones(6, 4).cumsum(0)), (WHOLE, [6, 4], "rand")),
    ],
)
def test_a_graph_draws_the_rows_that_it_keeps(uses: Any, drawn: Any) -> None:
    traced = make_fx(lambda seed: uses(inductor_prims.random([6, 4], seed, "rand")), {}, "fake")
    graph, operators = traced(torch.tensor(0)).graph, Operators(None)
    operators.namespace()
    operators.draw_rows(graph, inductor_prims.random)
    graph.lint()
    nodes = [n for n in graph.nodes if n.op == "call_function"]
    draws = [n for n in nodes if str(n.target) in (DRAW, WHOLE)]
    assert [(str(n.target), n.args[0], n.args[-1]) for n in draws] == [drawn]
    if drawn[0] == DRAW:  # and what is computed of it has its shape
        assert all(n.meta["val"].shape == (3, 4) for n in nodes)
