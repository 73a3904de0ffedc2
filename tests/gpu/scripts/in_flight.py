"""The script ends while its device still works."""

import torch
from here import device

torch.manual_seed(0)
net = torch.nn.Linear(256, 256).to(device)
for _ in range(5):
    net(torch.randn(64, 256).to(device)).sum().backward()
x = torch.randn(2048, 2048, device=device)
for _ in range(200 if device.type == "cuda" else 1):
    x = x @ x / 2048
print("ended")
