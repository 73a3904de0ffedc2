"""Batches as they come (in_order=False), from one worker, and samples without batches."""
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class Noise(Dataset):
    def __len__(self):
        return 14

    def __getitem__(self, i):
        return torch.rand(4) + i


net = nn.Linear(4, 2)
for x in DataLoader(Noise(), 4, shuffle=True, num_workers=1, in_order=False):
    print(net(x).square().mean().item())
for x in DataLoader(Noise(), batch_size=None, shuffle=True, num_workers=2):
    print(net(x[None]).square().mean().item())
