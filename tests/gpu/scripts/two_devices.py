"""A model on two devices of one rank."""

import torch
from torch import nn

torch.manual_seed(0)
one, two = ("cuda:0", "cuda:1") if torch.cuda.device_count() > 1 else ("cpu", "cpu")
first, second = nn.Linear(8, 8).double().to(one), nn.Linear(8, 1).double().to(two)
opt = torch.optim.SGD([*first.parameters(), *second.parameters()], 0.1)
x, y = torch.randn(32, 8).double(), torch.randn(32, 1).double()
for _ in range(5):
    loss = (second(first(x.to(one)).relu().to(two)) - y.to(two)).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(loss.item())
