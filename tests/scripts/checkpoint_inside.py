"""Activation checkpoints of both kinds, inside the model, around parts of it, and of a layer that is called twice."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self, use_reentrant):
        super().__init__()
        self.stem, self.head = nn.Linear(20, 16), nn.Linear(16, 4)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2)) for _ in range(2)
        )
        self.use_reentrant = use_reentrant

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.use_reentrant)
        return self.head(x)


x = torch.randn(60, 20)
loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=16, shuffle=True)
for use_reentrant in (False, True):
    net = Net(use_reentrant)
    shared = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 16), nn.Tanh())
    optimizer = torch.optim.SGD([*net.parameters(), *shared.parameters()], lr=0.1)
    for x, y in loader:
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(use_reentrant, loss.item(), net.blocks[0][1].running_var.sum().item())
    for x, y in loader:
        h = net.stem(x)
        for _ in range(2):
            h = checkpoint(shared, h, use_reentrant=use_reentrant)
        h = checkpoint_sequential(shared, 2, h, use_reentrant=use_reentrant)
        loss = checkpoint(lambda h: F.cross_entropy(net.head(h), y), h, use_reentrant=use_reentrant)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("parts", loss.item(), shared[0].weight.grad.norm().item())
    torch.save(net.state_dict(), f"net{int(use_reentrant)}.pt")
