"""Training goes on with the gradients of backwards that raised in the middle."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

x = torch.randn(79, 20)
loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=16, shuffle=True)
net = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


def refuse(grad):
    raise RuntimeError("no gradient today")


def by_hook(x, y, **given):
    h = net[1](net[0](x))
    h.register_hook(refuse)
    F.cross_entropy(net[2](h), y).backward(**given)


def freed(x, y, **given):
    h = net[1](net[0](x))
    h.square().mean().backward()  # frees what the next one needs, behind the last layer
    F.cross_entropy(net[2](h), y).backward(**given)


for fails in (by_hook, freed):
    for given in ({}, {"inputs": [*net.parameters()]}, {"retain_graph": True}):
        for step, (x, y) in enumerate(loader):
            try:
                fails(x, y, **given)
            except RuntimeError as error:
                print(step, str(error)[:40])
            if step == 1:
                print(*[None if p.grad is None else p.grad.norm().item() for p in net.parameters()])
            if step != 3:  # and else they add up
                optimizer.step()
                optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
        print(fails.__name__, [*given], [p.sum().item() for p in net.parameters()])
