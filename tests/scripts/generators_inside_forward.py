"""forward draws its next move from Python generators, iterators and `random`, a move for each call."""
import itertools
import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
random.seed(0)


def moves():
    while True:
        yield lambda h: h
        yield lambda h: h - h.mean(0)
        size = yield lambda h: h[torch.randperm(len(h))]
        yield lambda h: h * size


class Moving(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)
        self.moves, self.count = moves(), itertools.count()
        self.scales = itertools.cycle([1.0, 0.5, 2.0])
        next(self.moves)

    def forward(self, x):
        h = self.a(x)
        h = self.moves.send(len(h) / 10)(h) * next(self.scales)
        if next(self.count) % 3 == 1:
            h = h.softmax(0) * len(h)
        if random.random() < 0.3:
            h = h * torch.bernoulli(torch.full((len(h), 1), 0.5))
        return self.b(F.relu(h))


x, y = torch.randn(140, 6), torch.randint(3, (140,))
net = Moving()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for a, b in DataLoader(TensorDataset(x, y), batch_size=15):
    optimizer.zero_grad()
    loss = F.cross_entropy(net(a), b)
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.12f}")
print(f"{sum(p.abs().sum().item() for p in net.parameters()):.12f}", next(net.count), random.random())
torch.save(net.state_dict(), "net.pt")
