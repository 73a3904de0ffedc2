"""Hooks clamp gradients of parameters, scale those of outputs by their values, and leave marks for each other."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
x = torch.randn(60, 20)
loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=16, shuffle=True)
net = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 4))
for p in net.parameters():
    p.register_hook(lambda grad: grad.clamp(-0.2, 0.2))
optimizer = torch.optim.SGD(net.parameters(), lr=0.5)


def clip_rare(grad):
    return grad / 2 if grad.abs().max() > 0.11 else grad * 2


for x, y in loader:
    z = net[0](x)
    h = net[1](z)
    kept = []  # as captum's rules of relevance do
    h.register_hook(kept.append)
    h.register_hook(lambda g: setattr(g, "replace", g * 3))
    z.register_hook(lambda g: getattr(kept[0], "replace", g))
    output = net[2](h)
    output.register_hook(clip_rare)
    loss = F.cross_entropy(output, y)
    optimizer.zero_grad()
    loss.backward()
    largest = max(p.grad.abs().max().item() for p in net.parameters())
    optimizer.step()
    print(loss.item(), largest, net[0].weight.grad.abs().sum().item())
torch.save(net.state_dict(), "net.pt")
