"""A CNN with BatchNorm in float64: what is left is the order of summation."""

import torch
from torch import nn

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
net = nn.Sequential(
    nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(288, 5)
).to(device)
opt = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
x, y = torch.randn(45, 3, 8, 8), torch.randint(5, (45,))
for step in range(10):
    for a, b in zip(x.split(15), y.split(15)):
        loss = nn.functional.cross_entropy(net(a.to(device)), b.to(device))
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(loss.item(), net[1].running_var.sum().item())
