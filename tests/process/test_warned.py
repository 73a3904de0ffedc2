"""Warnings name the lines that they name in one process, wherever frames of ours are between."""

from __future__ import annotations

import pytest

from tests.support.cli import fork_cli, run_python

SCRIPT = """
import warnings

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
net = nn.Linear(4, 3)


def deprecated(level=2, **more):
    warnings.warn("old", FutureWarning, level, **more)


def own():
    deprecated()


class Warned(nn.Module):
    def forward(self, x):
        warnings.warn(f"in forward, {len(x)} rows")
        deprecated(3)
        return F.softmax(x)


for step in range(3):
    x = torch.randn(6, 4)
    F.mse_loss(net(x), torch.zeros(6, 1))
    F.mse_loss(net(x), torch.zeros(6, 1))
    F.kl_div(net(x).log_softmax(1), torch.rand(6, 3))
    F.softmax(net(x))
    nn.Softmax()(net(x))
    F.dropout2d(net(x))
    Warned()(net(x))
    torch.nonzero(net(x)).T.sum()
    net(x).view(6, 3, 1).T
    net(x).grad
    float(net(x).mean())
    deprecated(step % 2 + 1)
    own()
warnings.warn(UserWarning("as an object"), stacklevel=1)
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    F.mse_loss(net(x), torch.zeros(6, 1))
    F.mse_loss(net(x), torch.zeros(6, 1))
print([(w.category.__name__, w.lineno, w.filename == __file__) for w in seen])
try:
    warnings.warn("no class", int)
except TypeError as error:
    print(error)
try:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        F.mse_loss(net(x), torch.zeros(6, 1))
except UserWarning as error:
    print("raised", str(error)[:40])
"""


@pytest.mark.parametrize("nproc", [2, 3])
def test_a_warning_names_the_line_that_it_is_about(nproc, tmp_path):
    path = tmp_path / "warned.py"
    path.write_text(SCRIPT)
    alone = run_python(path, cwd=tmp_path)
    ranks = fork_cli("run", "--nproc", str(nproc), path, cwd=tmp_path)
    assert alone.err.count("warned.py") > 10
    assert ranks.theirs.splitlines() == alone.err.splitlines()
    assert (ranks.rc, ranks.out) == (alone.rc, alone.out) == (0, alone.out)
