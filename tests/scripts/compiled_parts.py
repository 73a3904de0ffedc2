"""torch.compile of a model, a part, in place, of a loss and a whole step; a compiled model that returns its loss."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
x = torch.randn(48, 20)
loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=16, shuffle=True)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.out = nn.Sequential(nn.Linear(20, 16), nn.Dropout(0.1), nn.ReLU()), nn.Linear(16, 4)

    def forward(self, x, y=None):
        if y is None:
            return self.out(self.body(x))
        out = self.out(checkpoint(self.body[0], x, use_reentrant=False))
        return out, F.cross_entropy(out, y)


def train(name, model, step):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        loss = step(model, x, y)
        if loss.requires_grad:
            loss.backward()
        optimizer.step()
        print(name, loss.item())
    torch.save(model.state_dict(), f"{name}.pt")


@torch.compile(backend="aot_eager")
def smoothed(logits, target):
    return F.cross_entropy(logits, target, label_smoothing=0.1) + 1e-3 * logits.pow(2).mean()


@torch.compile(backend="eager")
def whole(model, x, y):
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    return loss.detach()


part, inplace = Net(), Net()
part.body = torch.compile(part.body, backend="aot_eager")
inplace.compile(backend="aot_eager")
train("part", part, lambda model, x, y: F.cross_entropy(model(x), y))
train("inplace", inplace, lambda model, x, y: smoothed(model(x), y))
train("step", Net(), whole)
train("scored", torch.compile(Net(), backend="aot_eager"), lambda model, x, y: model(x, y)[1])
