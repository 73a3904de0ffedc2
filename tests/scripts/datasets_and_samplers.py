"""Data sets put together, cut and split; samplers of torch's and of the script's own; the last batch left out."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import data as D

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class Alternating(D.Sampler):
    def __init__(self, labels):
        self.by_class = [torch.where(labels == c)[0] for c in (0, 1)]

    def __len__(self):
        return 2 * min(len(c) for c in self.by_class)

    def __iter__(self):
        a, b = (c[torch.randperm(len(c))].tolist() for c in self.by_class)
        for pair in zip(a, b):
            yield from pair


class Doubled(D.Dataset):
    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        x, y, n = self.data[i]
        return x * 2, y, -n


x = torch.randn(70, 20)
y = (x[:, 0] > 0.2).long()
data = D.TensorDataset(x, y, torch.arange(70))
train, val = D.random_split(data, [0.8, 0.2])
both = D.ConcatDataset([train, Doubled(D.Subset(data, range(0, 50, 2)))])
rare = D.WeightedRandomSampler((1.0 / y.bincount())[y], num_samples=50, replacement=True)
seeded = D.RandomSampler(data, generator=torch.Generator().manual_seed(5))
loaders = {
    "own": D.DataLoader(data, 10, sampler=Alternating(y)), "seeded": D.DataLoader(data, 16, sampler=seeded),
    "rare": D.DataLoader(data, 16, sampler=rare), "drop_last": D.DataLoader(both, 16, shuffle=True, drop_last=True),
    "split": D.DataLoader(val, len(val)), "in turns": D.DataLoader(both, 12, shuffle=True),
}
net = nn.Linear(20, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.3)
for epoch in range(2):
    for name, loader in loaders.items():
        print(name, len(loader), loader.batch_size, len(loader.dataset))
        for x, y, n in loader:
            loss = F.cross_entropy(net(x), y)
            optimizer.zero_grad(), loss.backward(), optimizer.step()
            print(loss.item(), n.tolist())
