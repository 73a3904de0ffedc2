"""A data set that fetches a batch by its own function, and a part of it; batches in any order; single samples."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader, Dataset, Subset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class Normed(Dataset):
    x = torch.randn(23, 3)

    def __len__(self):
        return 23

    def __getitem__(self, i):
        return self.x[i]

    def __getitems__(self, indices):  # torch asks it for a whole batch
        x = self.x[indices]
        return list(x - x.mean(0))


class Noise(Dataset):
    def __len__(self):
        return 14

    def __getitem__(self, i):
        return torch.rand(3) + i


loaders = {
    "whole": DataLoader(Normed(), batch_size=5),
    "part": DataLoader(Subset(Normed(), range(2, 20)), batch_size=5),
    "any order": DataLoader(Noise(), 4, shuffle=True, num_workers=1, in_order=False),
    "samples": DataLoader(Noise(), batch_size=None, shuffle=True, num_workers=2),
}
net = torch.nn.Linear(3, 2)
for name, loader in loaders.items():
    for x in loader:
        print(name, x.shape, x.abs().sum().item(), net(x).square().mean().item())
