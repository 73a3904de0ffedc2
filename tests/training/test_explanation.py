import io
import re
from inspect import signature

import pytest
import torch
from torch.nn import functional as F

from autoddp.options import Options
from autoddp.process.session import session
from autoddp.report import Report
from autoddp.training import explanation
from tests.support.ranks import run_ranks
from tests.support.training import batches, mlp, sgd, train

pytestmark = pytest.mark.slow


def told(script, nproc=2, **options):
    """What is said on each rank: before the third step, by the end."""

    def rank(group):
        torch.set_default_dtype(torch.float64)
        torch.manual_seed(0)
        stream = io.StringIO()
        report = Report(speaks=group.rank == 0, stream=stream)
        given = Options(**{"placement": "sharded"} | options)
        with session(group.world, given, group, report) as run:
            seen = script(stream, **({"run": run} if "run" in signature(script).parameters else {}))
        return seen, stream.getvalue().splitlines()

    return run_ranks(rank, nproc)


def steps(stream, count=5):
    """How many lines were there after each step."""
    model, lines = mlp(), []
    optimizer = sgd(model)
    loader = batches(40, 8)
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        lines.append(len(stream.getvalue().splitlines()))
        if len(lines) == count:
            break
    return lines


def test_it_is_said_once_after_three_steps_by_rank_0():
    zero, one = told(steps)
    assert zero[0] == [0, 0, len(zero[1]), len(zero[1]), len(zero[1])]
    assert one[1] == []
    assert [line.partition(": ")[0] for line in zero[1]] == [
        "[autoddp] fetching",
    ]
    (fetching,) = zero[1]
    assert re.search(
        r"DataLoader at test_explanation.py:\d+: each rank fetches its rows$", fetching
    )


def gathers(stream):
    """A function that gathers most, one that gathers less, and a wish of the script's."""
    optimizer = sgd(mlp())
    for x, _ in batches(24, 8):
        x.masked_select(x > 0)
        x[:, :1].masked_select(x[:, :1] > 0)
        x.numpy()
        optimizer.step()


def test_what_gathers_most_is_said_with_what_helps_and_all_with_v():
    zero, _ = told(gathers)
    (line,) = (line for line in zero[1] if "gathers: " in line)
    assert "gathers: masked_select at test_explanation.py:" in line
    assert line.endswith("(-v shows them)")
    verbose = [line for line in told(gathers, verbose=True)[0][1] if "gathers: " in line]
    assert any("gathers: numpy at " in line for line in verbose)


def account(script, nproc=2, **options):
    """The line at the end, as if the script had run for long, without its seconds."""
    explanation.LONG = 0.0
    try:
        zero, one, *_ = told(script, nproc, **options)
    finally:
        explanation.LONG = 5.0
    assert not [line for line in one[1] if " ranks, " in line]
    (line,) = (line for line in zero[1] if re.match(r"\[autoddp\] 2 ranks, \d+ s: ", line))
    line = line.partition(" s: ")[2]
    assert line.endswith("; `autoddp bench` tells more")
    return line.removesuffix("; `autoddp bench` tells more")


WAITED = r"; time spent waiting: \d+% for gradients, (\d+)% for other ranks, \d+% for the loader"


def test_how_the_work_went_is_said_at_the_end():
    line = account(lambda stream: train(mlp(), batches(40, 8)))
    found = re.fullmatch(
        rf"(\d+)% of the computing was shared{WAITED}",
        line,
    )
    assert found, line
    assert int(found[1]) >= 95


def test_in_the_local_view_each_rank_works_on_its_rows():
    zero, one = told(lambda stream: train(mlp(), batches(40, 8)), view="local")
    said = (
        "[autoddp] --view local: losses and metrics that are printed "
        "are those of rank 0's rows alone"
    )
    assert (zero[1], one[1]) == ([said], [])
    assert account(lambda stream: None, view="local").startswith("time spent waiting: ")
