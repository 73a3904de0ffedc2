"""Tracebacks that a script prints have none of our frames, and all of its own."""

from __future__ import annotations

import pytest

from tests.support.cli import fork_cli, run_python

SCRIPT = """
import logging
import sys
import traceback

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s")


def told():
    try:
        raise KeyError("a key")
    except KeyError as error:
        raise ValueError("a value") from error


net = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for (x,) in DataLoader(TensorDataset(torch.randn(12, 4)), 6):
    loss = net(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(round(loss.item(), 9))
    for act in (
        lambda: net(x[:, :2]),
        lambda: F.softmax(net(x), dim=7),
        lambda: net(x) @ torch.ones(2, 2),
        lambda: torch.save(net, "nowhere/net.pt"),
        lambda: open("nowhere"),
        told,
    ):
        try:
            act()
        except Exception as error:
            logging.exception("caught")
            names = [f.name for f in traceback.extract_tb(error.__traceback__)]
            print(traceback.format_exc().count("File"), names)
"""


@pytest.mark.parametrize("nproc", [1, 3])
def test_tracebacks_are_those_of_one_process(nproc, tmp_path):
    path = tmp_path / "traced.py"
    path.write_text(SCRIPT)
    alone = run_python(path, cwd=tmp_path)
    ranks = fork_cli("run", "--nproc", str(nproc), path, cwd=tmp_path)
    assert alone.out.count("traced.py") > 20, alone.err
    want, got = ([line.strip(" ^~") for line in done.out.splitlines()] for done in (alone, ranks))
    assert got == want
    assert (ranks.rc, ranks.theirs) == (0, "")


# as torch's handler of SIGCHLD raises an error, at any time
INTERRUPTED = """
import sys
from autoddp.process.script import Script

def interrupted():
    raise RuntimeError("DataLoader worker (pid 1) exited unexpectedly")

sys.exit(Script(sys.argv[1]).run(ended=[interrupted]))
"""


@pytest.mark.parametrize("text", ["", "import sys\nsys.exit(0)"], ids=["returns", "exits"])
def test_an_error_after_the_end_of_the_script_is_shown_without_our_frames(text, tmp_path):
    (tmp_path / "ends.py").write_text(text)
    done = run_python("-c", INTERRUPTED, tmp_path / "ends.py")
    assert done.rc == 1
    assert "RuntimeError: DataLoader worker (pid 1)" in done.err
    assert "process/script.py" not in done.err
