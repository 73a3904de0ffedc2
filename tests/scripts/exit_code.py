"""Leaves with an exit code of its own when the loss is not good enough."""
import sys

import torch
from torch import nn

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

net = nn.Linear(20, 1)
loss = net(torch.randn(12, 20)).pow(2).mean()
loss.backward()
print(loss.item(), net.weight.grad.norm().item())
if loss.item() > 0.01:
    print("not good enough", file=sys.stderr)
    sys.exit(3)
