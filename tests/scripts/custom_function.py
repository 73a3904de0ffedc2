"""autograd functions of the script's own: by elements, for a loss, drawing, mixing rows forward, or backward alone."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import Function
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class Swish(Function):
    @staticmethod
    def forward(ctx, x, beta):
        ctx.save_for_backward(x)
        ctx.beta = beta
        return x * torch.sigmoid(beta * x)

    @staticmethod
    def backward(ctx, g):
        return g * torch.sigmoid(ctx.beta * ctx.saved_tensors[0]), None


class Mix(Function):
    @staticmethod
    def forward(ctx, h):
        ctx.save_for_backward(h)
        return h + 0.1 * h.flip(0) * h.sum(0)

    @staticmethod
    def backward(ctx, g):
        (h,) = ctx.saved_tensors
        return g + 0.1 * ((g * h.flip(0)).sum(0) + (g * h.sum(0)).flip(0))


class Centre(Function):
    forward, on = staticmethod(lambda ctx, x: x.clone()), False
    backward = staticmethod(lambda ctx, g: g - g.mean(0) if Centre.on else g * 2)


class Shake(Function):
    forward = staticmethod(lambda ctx, x: x * x.new(x.size(0), 1).uniform_())
    backward = staticmethod(lambda ctx, g: g * g.new(g.size(0), 1).uniform_())


KINDS = {"swish": lambda h: Swish.apply(h, 1.5), "mix": Mix.apply, "centre": Centre.apply, "shake": Shake.apply}
for name, kind in KINDS.items():
    net = nn.ModuleList([nn.Linear(4, 8), nn.Linear(8, 3)])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step, (x, y) in enumerate(DataLoader(TensorDataset(torch.randn(33, 4), torch.arange(33) % 3), 6, shuffle=True)):
        Centre.on = step > 2
        loss = F.cross_entropy(net[1](kind(net[0](x))), y)
        optimizer.zero_grad(), loss.backward(), optimizer.step()
        print(name, loss.item(), net[0].weight.grad.norm().item(), torch.rand(()).item())
