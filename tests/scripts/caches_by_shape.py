"""Masks and scales that are made once for each shape: by lru_cache, in a dictionary, in an attribute."""
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


@lru_cache(maxsize=None)
def ramp(rows, width):
    return torch.linspace(0.5, 1.5, rows)[:, None].expand(rows, width)


class Cached(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)
        self.noise, self.first = {}, None

    def forward(self, x):
        h = self.a(x)
        if h.shape not in self.noise:
            self.noise[h.shape] = torch.randn(h.shape)
            self.noise[h.shape, "like"] = torch.rand_like(h)
        h = h * ramp(*h.shape) + 0.1 * self.noise[h.shape] * self.noise[h.shape, "like"]
        if self.first is None:
            self.first = h.detach()
        if self.first.shape == h.shape:
            h = h + 0.1 * self.first.mean(0)
        return self.b(F.relu(h))


x, y = torch.randn(50, 6), torch.randint(3, (50,))
net = Cached()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for epoch in range(2):
    for a, b in DataLoader(TensorDataset(x, y), batch_size=13 + 3 * epoch, shuffle=True):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(a), b)
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.12f}", len(net.noise), ramp.cache_info().misses)
print(f"{sum(p.abs().sum().item() for p in net.parameters()):.12f}", f"{net.first.sum().item():.12f}")
torch.save(net.state_dict(), "net.pt")
