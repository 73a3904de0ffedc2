"""Mixup by a permutation, adversarial examples from the gradient of the input, attributions as captum's."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
x = torch.randn(45, 20)
loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=12, shuffle=True)
net = nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.2)


def update(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


for x, y in loader:
    lam, perm = 0.3, torch.randperm(x.size(0))
    output = net(lam * x + (1 - lam) * x[perm])
    mixup = update(lam * F.cross_entropy(output, y) + (1 - lam) * F.cross_entropy(output, y[perm]))
    x.requires_grad = True
    clean = F.cross_entropy(net(x), y)
    net.zero_grad()
    clean.backward()
    adversarial = x + 0.1 * x.grad.data.sign()
    attacked = update(F.cross_entropy(net(adversarial.detach()), y))
    print(mixup, clean.item(), attacked, x.grad.abs().sum().item())
    x.requires_grad_(False)
    handle = net[0].register_forward_hook(lambda *_: None)
    print((net(x[0 : len(x)]) * 2).sum().item())
    handle.remove()
    x.requires_grad_()
    print(torch.autograd.grad(net(x)[:, 0].sum(), x)[0].sum().item())
    x.requires_grad_(False)
    print([net(x * (torch.arange(20) != k)).sum().item() for k in range(6)])
torch.save(net.state_dict(), "net.pt")
