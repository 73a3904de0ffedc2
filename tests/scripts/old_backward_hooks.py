"""Backward hooks of the old kind, as in optimizers that follow a curvature, and in Grad-CAM."""
import warnings

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("ignore")
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
net = nn.Sequential(
    nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5)
)
covariances = {}


def hook(module, grad_in, grad_out):
    g = grad_out[0].flatten(1)
    covariances[type(module).__name__] = g.t() @ g * len(g)
    print(type(module).__name__, tuple(grad_out[0].shape), [g is None for g in grad_in])


for layer in net[0], net[2], net[4]:
    layer.register_backward_hook(hook)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
loader = DataLoader(TensorDataset(torch.randn(23, 3, 4, 4), torch.arange(23) % 5), batch_size=8)
for x, y in loader:
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item(), {name: c.norm().item() for name, c in covariances.items()})
torch.save({"net": net.state_dict(), "covariances": covariances}, "net.pt")
