"""A data set that draws random numbers for every sample, from torch, random and numpy."""
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_default_dtype(torch.float64)
random.seed(0)
np.random.seed(0)
torch.manual_seed(0)
drawn = random.random
random.random = lambda: drawn()  # a function of Python, as a script may set one


class Augmented(Dataset):
    def __init__(self):
        self.x = torch.randn(50, 20)

    def __len__(self):
        return 50

    def __getitem__(self, i):
        x = self.x[i] + 0.1 * torch.randn(20)
        if random.random() < 0.5:
            x = x.flip(0)
        x = x * float(np.random.uniform(0.9, 1.1))
        return x, self.x[i, :4].argmax()


net = nn.Linear(20, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.3)
for workers in (0, 2):
    for x, y in DataLoader(Augmented(), batch_size=9, shuffle=True, num_workers=workers):
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item(), x.sum().item())
print(random.random(), float(np.random.rand()), torch.rand(1).item())
torch.save(net.state_dict(), "net.pt")
