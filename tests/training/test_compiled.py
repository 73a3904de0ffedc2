"""What is given to torch.compile: graphs for the rows of each rank, or eager and said why."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.support.same import same_run
from tests.support.warm import PLAIN_ENV

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1500),  # g++ takes minutes, where torch's cache is empty
    pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed"),
]

HEAD = """
import logging
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)  # that there is no GPU
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
x = torch.randn(33, 20)
loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=12, shuffle=True)


def train(model, net, loader=loader):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for a, b in loader:
        loss = F.cross_entropy(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item())


"""
MODULES = """
net = nn.Sequential(nn.Linear(20, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 4))
train(torch.compile(net, mode="reduce-overhead"), net)
inside = nn.Sequential(nn.Linear(20, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
inside.compile()  # on torch 2.6 one process takes it apart, and draws other masks
train(inside, inside)
body, last = nn.Sequential(nn.Linear(20, 8), nn.ReLU()), torch.compile(nn.Linear(8, 4))
parted = nn.Sequential(torch.compile(body), nn.BatchNorm1d(8), last)  # its rows were summed before
train(parted, parted)
print(torch.rand(1).item())
"""
BATCHES = """
class Drops(nn.Sequential):
    def forward(self, x):
        if x.size(1) != 20:
            raise ValueError("refused")
        return super().forward(x + x.roll(1, 0))  # gathers, in the order that ranks agree on


drops = Drops(nn.Linear(20, 8), nn.Dropout(0.4), nn.Linear(8, 4))
model = torch.compile(drops)
for size in (16, 31):  # the last batch has 1 row, and 2
    train(model, drops, DataLoader(loader.dataset, size))
print(torch.rand(1).item())


class Scales(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(20, 4)

    def forward(self, x, weight):
        x.mul_(2)
        return self.out(x) + F.linear(x, weight)


scales, maker = Scales(), nn.Linear(1, 80)
scaled = torch.compile(scales)
optimizer = torch.optim.SGD([*scales.parameters(), *maker.parameters()], lr=0.1)
for a, b in loader:
    before = a.numpy().sum()  # the batch is gathered, and its memory is the script's
    weight = maker(scales.out(a.clone()).mean().reshape(1)).view(4, 20)  # no leaf, and of all rows
    loss = F.cross_entropy(scaled(a, weight), b) + weight.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(before, a.numpy().sum(), loss.item(), maker.weight.grad.sum().item())
model.eval()  # after an error one process may go on eagerly, with other masks
try:
    model(torch.randn(6, 21))
except ValueError as error:
    print(error)
print(model(x).sum().item())
"""
EAGER = """
class Speaks(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(20, 4)

    def forward(self, x):
        h = self.out(x)
        print("forward", tuple(h.shape))
        return h


net = Speaks()
train(torch.compile(net), net)
train(torch.compile(net.out, backend="eager"), net)
"""
WRONG = """
net = nn.Linear(21, 4)
train(torch.compile(net), net)
"""


@pytest.fixture
def both(warm, tmp_path):
    """Run a script in one process, and on ranks; three compile into the script's folder."""
    inside = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}

    def run(text, nproc):
        path = tmp_path / "job.py"
        path.write_text(HEAD + text)
        env = os.environ | PLAIN_ENV | (inside if nproc == 3 else {})
        plain = warm.run("python", str(path), folder=tmp_path / "python", timeout=600, env=env)
        given = ("autoddp", "run", "--nproc", str(nproc), str(path))
        return plain, warm.run(*given, folder=tmp_path / "ranks", timeout=600, env=env)

    return run


@pytest.mark.parametrize(("text", "nproc"), [(MODULES, 2), (BATCHES, 3)], ids=[2, 3])
def test_a_graph_is_compiled_for_the_rows_of_each_rank(both, text, nproc):
    plain, ranks = both(text, nproc)
    assert "runs eagerly" not in ranks.err  # it would draw other masks
    same_run(plain, ranks, 1e-9)


def test_what_cannot_be_compiled_runs_eagerly_and_a_line_says_why(both):
    plain, ranks = both(EAGER, 2)
    same_run(plain, ranks, 1e-9)
    assert "Speaks runs eagerly, without torch.compile: " in ranks.err
    assert "Linear runs eagerly, without torch.compile: backend 'eager'" in ranks.err


def test_what_the_collector_calls_between_two_frames_is_not_compiled(both):
    often = "import gc\ngc.set_threshold(1)\ntorch._logging.set_logs(dynamo=logging.DEBUG)\n"
    _, ranks = both(often + EAGER, 2)
    assert "start compiling call" in ranks.err
    assert "start compiling _generators_among" not in ranks.err


def test_an_error_of_the_model_is_its_own(both):
    _, ranks = both(WRONG, 2)
    assert ranks.code == 1
    assert "shapes cannot be multiplied" in ranks.err
