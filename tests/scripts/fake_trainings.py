"""Trainings of fake tensors, as estimates of memory make them, beside a true one."""

import random

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
random.seed(0)


def training():
    model = nn.Sequential(
        nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3)
    )
    return model, torch.optim.Adam(model.parameters())


def step(model, optimizer, x, y):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


mode = FakeTensorMode()
with mode:
    fake = training()
    for _ in range(6):
        loss = step(*fake, torch.randn(12, 8), torch.zeros(12, dtype=torch.int64))
        print(tuple(loss.shape), [tuple(p.grad.shape) for p in fake[0].parameters()])
    out = fake[0](torch.randn(12, 8)).sum()
    print([tuple(g.shape) for g in torch.autograd.grad(out, [*fake[0].parameters()])])
    later = fake[0](torch.randn(12, 8)).sum()
later.backward()
print(random.random(), torch.rand(1).item())

true = training()
for x, y in DataLoader(TensorDataset(torch.randn(96, 8), torch.arange(96) % 3), 12, shuffle=True):
    with mode:
        step(*fake, torch.empty(12, 8), torch.zeros(12, dtype=torch.int64))
    print(f"{step(*true, x, y).item():.12f}", random.random(), torch.rand(1).item())
