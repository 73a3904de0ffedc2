"""A small model whose functions need the whole batch: ranks have little to share."""

import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.use_deterministic_algorithms("deterministic" in sys.argv)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(6, 16), nn.BatchNorm1d(16)
        self.last = nn.Linear(16, 3)

    def forward(self, x):
        h = F.dropout(self.norm(self.first(x)), 0.1, self.training)
        for _ in range(25):
            h = h + 0.01 * h.sort(0)[0].cumsum(0)
        return self.last(h)


net = Net()
data = TensorDataset(torch.randn(96, 6), torch.randint(3, (96,)))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
for epoch in range(6):
    for x, y in DataLoader(data, 8, shuffle=True):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        print(epoch, repr(loss.item()))
net.eval()
print(net(data.tensors[0]).double().sum().item(), net.norm.running_var.sum().item())
