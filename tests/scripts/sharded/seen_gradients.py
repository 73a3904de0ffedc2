"""Hooks, retained gradients and a backward of the script, on what is computed of weights."""
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g.clamp(-0.01, 0.01)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.weight = nn.Linear(5, 8), nn.Parameter(torch.randn(3, 8))

    def forward(self, x):
        clipped, self.made = Clipped.apply(self.weight * 2), self.weight.sin()
        self.made.register_hook(lambda g: print("hook", g.sum().item()))
        self.made.register_hook(lambda g: g / (g.norm() + 1))
        removed = self.made.register_hook(lambda g: g * 1000)
        self.made.retain_grad()
        h = self.first(x)
        out = F.linear(h.tanh(), clipped) + F.linear(h, self.made)
        removed.remove()
        self.made.register_hook(lambda g: print("later", g.sum().item()))
        return out


net = Net()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for x in DataLoader(torch.randn(16, 5), 5):
    loss = net(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item(), net.made.grad.sum().item(), [p.grad.sum().item() for p in net.parameters()])
