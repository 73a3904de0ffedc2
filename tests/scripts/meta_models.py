"""Models without numbers, as for shapes and summaries: Python's `random` is not drawn from."""

import random

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class Sorts(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(64, 256), nn.BatchNorm1d(256)

    def forward(self, x):
        return torch.sort(self.norm(self.first(x)), dim=0).values


def shapes_of(model, x):
    out = model(x)
    F.cross_entropy(out, torch.zeros(len(x), dtype=torch.int64, device="meta")).backward()
    assert model.first(x).mean(0).shape == (256,)  # a sum over rows
    return tuple(out.shape), [tuple(p.grad.shape) for p in model.parameters()]


torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
random.seed(0)
with torch.device("meta"):
    model = Sorts()
print(shapes_of(model, torch.empty(130, 64, device="meta")), random.random())

real = nn.Sequential(nn.Linear(64, 8), nn.Dropout(0.1), nn.Linear(8, 3))
optimizer = torch.optim.SGD(real.parameters(), 0.1)
for x, y in DataLoader(TensorDataset(torch.randn(390, 64), torch.arange(390) % 3), 130):
    print(shapes_of(model, x.to("meta")), random.random())
    optimizer.zero_grad()
    loss = F.cross_entropy(real(x), y)
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.12f}", random.random(), torch.rand(1).item())

made = Sorts().to("meta").to_empty(device="cpu")
print([tuple(p.shape) for p in made.parameters()], random.random(), torch.rand(1).item())
