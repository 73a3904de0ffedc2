"""A data set that fetches a whole batch by a function of its own, and a part of it."""
import torch
from torch.utils.data import DataLoader, Dataset
torch.set_default_dtype(torch.float64)


class Normed(Dataset):
    x = torch.randn(23, 3, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return 23

    def __getitem__(self, i):
        return self.x[i]

    def __getitems__(self, indices):  # torch asks it for a whole batch
        x = self.x[indices]
        return list(x - x.mean(0))


for x in DataLoader(Normed(), batch_size=5):
    print(x.abs().sum().item())
for x in DataLoader(torch.utils.data.Subset(Normed(), range(2, 20)), batch_size=5):
    print(x.abs().sum().item())
