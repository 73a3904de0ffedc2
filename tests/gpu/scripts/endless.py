"""Trains until it is ended; with `memory`, one rank asks in step 30 for more than its device has."""

import sys

import autoddp
import torch
from here import device

torch.manual_seed(0)
net = torch.nn.Linear(256, 256).to(device)
opt = torch.optim.SGD(net.parameters(), 0.001)
x = torch.randn(64, 256)
step = 0
while True:
    step += 1
    loss = net(x.to(device)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step == 20:
        print("trains", flush=True)
    if step == 30 and "memory" in sys.argv and autoddp.rank() == autoddp.world_size() - 1:
        torch.empty(1 << 46, dtype=torch.uint8, device=device)
