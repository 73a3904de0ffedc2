"""Hooks that mark a gradient for each other, as captum's rules of relevance do."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x, y in DataLoader(TensorDataset(torch.randn(23, 6), torch.randn(23, 3)), batch_size=10):
    z = net[0](x)
    h = net[1](z)
    kept = []
    h.register_hook(kept.append)
    h.register_hook(lambda g: setattr(g, "replace", g * 3))
    z.register_hook(lambda g: getattr(kept[0], "replace", g))
    loss = (net[2](h) - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item(), net[0].weight.grad.abs().sum().item())
