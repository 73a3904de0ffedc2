"""Samples take their time, so that ranks which share them are faster."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
seconds = float(sys.argv[1])


class Samples(Dataset):
    def __init__(self):
        self.x, self.y = torch.randn(80, 6), torch.randint(3, (80,))

    def __len__(self):
        return 80

    def __getitem__(self, at):
        time.sleep(seconds)
        return self.x[at], self.y[at]


net = nn.Linear(6, 3)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(7):
    total = 0.0
    for x, y in DataLoader(Samples(), 8, shuffle=True):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(epoch, repr(total))
