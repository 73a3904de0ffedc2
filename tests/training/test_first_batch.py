"""Nodes that read other data say so at the first batch, in each way in which a loader is run."""

from __future__ import annotations

import pytest
import torch

from tests.support.cli import run_nodes

SCRIPT = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

class Files(Dataset):
    def __init__(self, x, draws=False):
        self.x, self.draws = x, draws
    def __len__(self):
        return len(self.x)
    def __getitem__(self, number):
        return self.x[number] * 1 + (0 * torch.rand(()) if self.draws else 0), number

class Stream(IterableDataset):
    def __init__(self, x):
        self.x = x
    def __iter__(self):
        return ((row, n) for n, row in enumerate(self.x))

torch.manual_seed(0)
x, way = torch.load('x.pt'), sys.argv[1]
made = {
    'memory': lambda: TensorDataset(x, torch.arange(len(x))),
    'rows': lambda: Files(x),
    'drawn': lambda: Files(x, True),
    'stream': lambda: Stream(x),
    'each': lambda: Files(x),
}[way]()
workers = int(sys.argv[2])
loader = DataLoader(made, 4, shuffle=way != 'stream', num_workers=workers)
model = nn.Linear(3, 1)
seen = 0
for epoch in range(2):
    for a, b in loader:
        model(a).sum().backward()
        seen += len(b)
print(f'{model.weight.grad.sum().item():.4f} {seen}')
"""
LINE = SCRIPT.splitlines().index("    for a, b in loader:") + 1
X = torch.arange(24.0).view(8, 3)


def nodes(tmp_path, mine, theirs, *args, options=()):
    """The script on two nodes, each with an `x.pt` of its own."""
    folders = [tmp_path / name for name in "01"]
    for folder, x in zip(folders, (mine, theirs), strict=True):
        folder.mkdir()
        torch.save(x, folder / "x.pt")
        (folder / "s.py").write_text(SCRIPT)
    ended = run_nodes(*((folder, [*options, "s.py", *args]) for folder in folders))
    return [(done.out, done.err, done.rc) for done in ended]


WAYS = {
    "rows": (["rows", "0"], "its first batch "),
    "once on each node": (["drawn", "0"], "its first batch "),
    "every rank all": (["each", "0"], "its first batch "),
}


def options(args):
    return ["--loading", "each"] if args[0] == "each" else []


@pytest.mark.cluster
@pytest.mark.parametrize("way", WAYS)
def test_data_that_differs_is_named_at_the_first_batch(way, tmp_path):
    args, said = WAYS[way]
    other = X.clone()
    other[:, 1] += 1
    ended = nodes(tmp_path, X, other, *args, options=options(args))
    assert [(out, code) for out, _, code in ended] == [("", 1)] * 2, ended
    told = "".join(err for _, err, _ in ended)  # on the node whose rank has failed first
    assert f"Disagreement: DataLoader at s.py:{LINE}: {said}is not the same on all" in told
    assert "the nodes read different data; give all of them the same files" in told


@pytest.mark.cluster
def test_data_of_another_length_is_named(tmp_path):
    ended = nodes(tmp_path, X, X[:-1], "memory", "0")
    assert [(out, code) for out, _, code in ended] == [("", 1)] * 2, ended
    told = "".join(err for _, err, _ in ended)
    assert "the length of its data set is not the same on all ranks (rank 0 has 8, " in told
