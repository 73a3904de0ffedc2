"""A forward that goes another way by the number of rows: as it is, as a float, in words, by its parity."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        h = self.inner(x).tanh()
        batch, width = h.shape
        if batch > 6:
            h = h - h.mean(0)
        if len(x) % 2 == 0 and width > 4:
            pairs = h.view(batch // 2, 2, width)
            h = (pairs - pairs.mean(1, keepdim=True)).view(batch, width)
        if float(x.shape[0]) / 10 > 1.1:
            h = h * 3
        if f"{len(x)}".endswith("5") or str(tuple(h.shape)) == "(4, 8)":
            h = h.flip(0)
        h = h / math.sqrt(x.numel()) * torch.tensor(float(len(h))).log1p()
        return self.head(h) * (1 + torch.arange(h.size(0))[:, None] / h.size(0))


net = Net()
optimizer = torch.optim.Adam(net.parameters(), 0.01)
for size in (7, 5, 12, 4):
    data = TensorDataset(torch.randn(22, 6), torch.randint(3, (22,)))
    for x, y in DataLoader(data, size):
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(size, len(x), loss.item())
torch.save(net.state_dict(), "net.pt")
