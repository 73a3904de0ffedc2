"""torch.compile in a mode that is given: with BatchNorm and dropout, which draws on the device."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
net = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 1)).to(device)
fast = torch.compile(net, mode=sys.argv[1])
opt = torch.optim.SGD(net.parameters(), 0.01)
x, y = torch.randn(128, 32), torch.randn(128, 1)
for step in range(8):
    a, b = x[step % 2 * 64 :][:64].to(device), y[step % 2 * 64 :][:64].to(device)
    loss = (fast(a) - b).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(loss.item())
