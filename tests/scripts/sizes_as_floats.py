"""Sizes that become floats, strings, parities and format strings, and then decide."""
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class Sized(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        h = self.a(x)
        if float(x.shape[0]) / 10 > 1.2:
            h = h * 3
        if x.size(0) % 2:
            h = h - h.mean(0)
        if f"{len(x)}".endswith("6"):
            h = h + 0.1
        if str(tuple(h.shape)) == "(14, 8)":
            h = h.flip(0)
        h = h / math.sqrt(x.numel()) * torch.tensor(float(len(h))).log()
        return self.b(F.relu(h)) * (1 + torch.arange(h.size(0))[:, None] / h.size(0))


x, y = torch.randn(90, 6), torch.randint(3, (90,))
net = Sized()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for size in (16, 14, 13, 8):
    for a, b in DataLoader(TensorDataset(x, y), batch_size=size):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(a), b)
        loss.backward()
        optimizer.step()
        print(size, f"{loss.item():.12f}")
print(f"{sum(p.abs().sum().item() for p in net.parameters()):.12f}")
torch.save(net.state_dict(), "net.pt")
