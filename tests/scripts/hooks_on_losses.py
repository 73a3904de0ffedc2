"""Hooks on losses, and their gradients kept: of those that are read, added, weighted or part of another."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
data = TensorDataset(torch.randn(22, 6), torch.randint(3, (22,)))


def told(name, factor=None):
    def hook(g):
        print(name, g.shape, g.item())
        return None if factor is None else g * factor

    return hook


for step, (x, y) in enumerate(DataLoader(data, 7)):
    out = net(x)
    first, second = F.cross_entropy(out, y), out.pow(2).mean()
    third = F.cross_entropy(out, y, reduction="none").topk(1)[0].sum()
    if step % 2:
        print(first.item(), second.item())
    first.register_hook(told("first"))
    second.register_hook(told("second", 0.5))
    third.register_hook(told("third"))
    loss = first + 0.1 * second.exp() + third.log()
    for kept in (first, second, loss):
        kept.retain_grad()
    loss.register_hook(told("loss", 2.0))
    optimizer.zero_grad()
    loss.backward()
    print(first.grad, second.grad, loss.grad, net[0].weight.grad.sum().item())
    optimizer.step()
    handle = (two := F.cross_entropy(net(x), y)).register_hook(told("removed"))
    handle.remove()
    optimizer.zero_grad()
    two.backward()
    print(net[0].weight.grad.sum().item())
torch.save(net.state_dict(), "net.pt")
