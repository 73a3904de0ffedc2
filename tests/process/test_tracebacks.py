"""Tracebacks that a script prints have none of our frames, and all of its own."""

from __future__ import annotations

import shutil

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


EXTENSION = """
import torch
from torch.utils.cpp_extension import load_inline

SOURCE = "double first(const at::Tensor& x) { return x.data_ptr<double>()[0]; }"
name = {"functions": ["first"], "build_directory": ".", "extra_cflags": ["-O0"]}
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
first = load_inline("reader", "#include <torch/extension.h>\\n" + SOURCE, **name).first
net = torch.nn.Linear(3, 1)
for step in range(3):
    out = net(torch.randn(6, 3)).detach()
    print(round(first(out), 9))
"""


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("g++") and shutil.which("ninja")), reason="no g++, no ninja")
def test_what_reads_a_batch_past_torch_says_how_to_run_it(tmp_path):
    (tmp_path / "reads.py").write_text(EXTENSION)
    alone = run_python("reads.py", cwd=tmp_path)
    assert alone.rc == 0, alone.err
    done = fork_cli("run", "-n", "2", "--placement", "sharded", "reads.py", cwd=tmp_path)
    assert done.rc == 1
    assert "cannot read a batch that ranks share; run with --placement replicated" in done.err
    done = fork_cli("run", "-n", "2", "--placement", "replicated", "reads.py", cwd=tmp_path)
    assert (done.rc, done.out) == (0, alone.out), done.err


NOT_SHARED = """
import torch
torch.nn.Linear(3, 1)(torch.randn(1, 3))  # one row, which no ranks share
raise RuntimeError("its data is not allocated yet")
"""


@pytest.mark.parametrize("option", ["--placement=sharded", "--placement=replicated"])
def test_an_error_of_the_script_in_the_same_words_is_left_alone(option, tmp_path):
    (tmp_path / "raises.py").write_text(NOT_SHARED)
    done = fork_cli("run", "-n", "2", option, "raises.py", cwd=tmp_path)
    assert done.rc == 1
    assert "its data is not allocated yet" in done.err
    assert "dispatch" not in done.err
