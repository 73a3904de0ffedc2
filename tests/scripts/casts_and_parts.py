"""Casts of losses that round, and assignments to `real`, `imag` and `data`."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
net = nn.Linear(7, 1)
for (x,) in DataLoader(TensorDataset(torch.randn(24, 7)), 6):
    mean = net(x).square().mean()
    single = mean.float()
    print(f"{single.double().item():.15f}", bool(single.double() == single), (single * 3).dtype)
    low = net(x).bfloat16().mean()
    print(f"{low.float().item():.15f} {(low.float() * 2).double().item():.15f}")
    both = mean.float() + mean.double() * 2
    print(f"{both.item():.12f} {both.dtype} {(mean.float() / 3).double().item():.15f}")
    held = net(x).mean().detach()
    held.data = torch.tensor(3.0)
    print(held.item(), (held + 1).item())
weight = torch.randn(3, dtype=torch.cdouble, requires_grad=True)
layer = nn.Linear(3, 2, dtype=torch.cdouble)
optimizer = torch.optim.Adam([weight, *layer.parameters()], 0.01)
for (x,) in DataLoader(TensorDataset(torch.randn(24, 3, dtype=torch.cdouble)), 6):
    x.imag = x.real * 2
    y = x * weight
    y.real = y.imag
    y[:2].imag = torch.ones(2, 3)
    again = layer.weight * 2
    again.imag = torch.ones(2, 3) * layer.bias[0].real
    optimizer.zero_grad()
    (layer(y).abs().sum() + again.abs().sum()).backward()
    optimizer.step()
    print(f"{y.abs().sum().item():.11f} {layer.weight.grad.abs().sum().item():.11f}")
    with torch.no_grad():
        layer.weight.imag = torch.ones(2, 3)
        layer.weight[0].real = torch.arange(3.0)
        layer.bias.real = layer.bias.imag
    layer.weight.data.imag = layer.weight.data.imag * 2
    print(layer.weight.sum().item(), layer.weight.abs().sum().item(), layer.bias.sum().item())
    for name, value in (("imag", torch.ones(3)), ("real", 2)):
        try:
            setattr(weight, name, value)
        except (RuntimeError, TypeError) as error:
            print(type(error).__name__)
