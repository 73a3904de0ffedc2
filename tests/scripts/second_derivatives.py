"""Gradient penalties on functions of sums over the batch: derivatives of derivatives."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.set_default_dtype(torch.float64)
KINDS = {
    "square of a sum": lambda h: h.sum().square(),
    "sorted, less the mean": lambda h: torch.sort(h - h.mean(0), 0).values.sin().sum(),
    "norm of a mean": lambda h: (h.mean(0) ** 3).sum(),
    "distances to the mean": lambda h: torch.cdist(h.flip(0), h.mean(0, keepdim=True).sin()).sum(),
    "product of sums": lambda h: h.sum().sin() * h.square().sum(),
}
for name, top in KINDS.items():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
    for (x,) in DataLoader(TensorDataset(torch.randn(7, 6)), 4):
        x = x.clone().requires_grad_()
        h = model(x)
        (g,) = torch.autograd.grad(top(h), x, create_graph=True)
        loss = h.cos().mean() + g.norm(dim=1).mean()
        loss.backward()
        print(name, f"{loss.item():.9f}", *[f"{p.grad.square().sum().item():.9f}" for p in model.parameters()])
