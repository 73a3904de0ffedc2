"""Models that decide in Python by values of the whole batch, trained and evaluated, under inference_mode, too."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


def rounds(y):
    z, count = torch.zeros_like(y), 0
    while count < 20:
        new = torch.tanh(0.5 * z + y)
        done, z, count = (new - z).norm() < 0.5, new, count + 1
        if done:
            break
    return count


factors = {
    "bool": lambda y: 2 if y[:, 0].sum() > 0 else 1,
    "item": lambda y: 2 if y.max().item() > 1.5 else 1,
    "allclose": lambda y: 2 if torch.allclose(y[:, 0], y[:, 0].clamp(min=-1.0)) else 1,
    "equal": lambda y: 2 if torch.equal(y[:, 0], y[:, 0].clamp(max=1.0)) else 1,
    "list": lambda y: 2 if max(y[:, 0].tolist()) > 1 else 1,
    "int": lambda y: 1 + int((y[:, 0] > 0).sum() > 3),
    "classes": lambda y: nn.functional.one_hot((y[:, 0] > 1).long() + (y[:, 1] > 1).long()).size(1),
    "unique": lambda y: (y[:, 0] > 0.5).unique().numel(),
    "mask": lambda y: 1 + len(y[y > 0.5]) % 3,
    "nonzero": lambda y: 2 if (y.abs() > 1.2).nonzero().size(0) >= 2 else 1,
    "order": lambda y: 1 + int(y[:, 0].argsort(descending=True)[0]) % 3,
    "rows": lambda y: 1 + max(range(len(y)), key=lambda k: float(y[k, 0])) + sum(bool(row.sum() > 0) for row in y),
    "while": rounds,
}


class Net(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.linear, self.factor = nn.Linear(4, 3), factor

    def forward(self, x):
        y = self.linear(x)
        return y * self.factor(y)


data = torch.randn(60, 4)
for name, factor in factors.items():
    net = Net(factor)
    optimizer = torch.optim.SGD(net.parameters(), 0.02)
    for (x,) in DataLoader(TensorDataset(data), 6, shuffle=True):
        loss = (net(x) - x[:, :3]).pow(2).mean()
        optimizer.zero_grad(), loss.backward(), optimizer.step(), print(name, loss.item())
    for mode in (torch.inference_mode, torch.no_grad):
        with mode():
            print(name, [net(x).sum().item() for (x,) in DataLoader(TensorDataset(data), 6)])
