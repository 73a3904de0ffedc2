"""One row at a time, batches of two and a last one of one, a data set of a single sample, an empty slice."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(20, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 1))
criterion = nn.MSELoss()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
for n, batch_size in ((9, 2), (1, 4), (11, 5), (16, 4), (7, 1)):
    x = torch.randn(n, 20)
    for x, y in DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=batch_size):
        output = net(x)
        loss = criterion(output, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(n, len(x), loss.item(), output[:0].shape, output[-1].item(), x.type())
torch.save(net.state_dict(), "net.pt")
