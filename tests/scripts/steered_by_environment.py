"""Environment variables, a module's global and a class attribute turn a layer's coupling on and off."""
import os
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
MODE = "plain"


class Layer(nn.Module):
    centred, calls = False, 0

    def __init__(self, *sizes):
        super().__init__()
        self.linear = nn.Linear(*sizes)

    def forward(self, x):
        Layer.calls += 1
        h = self.linear(x)
        if os.environ.get("CENTRE") == "1" or type(self).centred:
            h = h - h.mean(0)
        if MODE == "scaled" or getattr(sys, "scaled", False):
            h = h / (h.norm() + 1)
        return h if Layer.calls % 5 else h.flip(0)


x, y = torch.randn(144, 6), torch.randint(3, (144,))
net = nn.Sequential(Layer(6, 8), nn.ReLU(), Layer(8, 3))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for step, (a, b) in enumerate(DataLoader(TensorDataset(x, y), batch_size=16)):
    os.environ["CENTRE"] = str(int(step == 2))
    MODE = "scaled" if step == 4 else "plain"
    Layer.centred = step == 6
    sys.scaled = step == 7
    optimizer.zero_grad()
    loss = F.cross_entropy(net(a), b)
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.12f}", Layer.calls)
print(f"{sum(p.abs().sum().item() for p in net.parameters()):.12f}")
torch.save(net.state_dict(), "net.pt")
