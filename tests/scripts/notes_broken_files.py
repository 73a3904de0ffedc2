"""Data sets whose state does not show at their first sample, and one that fetches batches."""
import torch
from torch.utils.data import DataLoader, Dataset
torch.set_default_dtype(torch.float64)


class Files(Dataset):
    def __init__(self):
        self.broken = []
    def __len__(self):
        return 23
    def __getitem__(self, i):
        if i % 5 == 3:  # "cannot be opened": take the next one, as many scripts do
            self.broken.append(i)
            return self[(i + 1) % 23]
        return torch.full((2,), float(i)), len(self.broken)
data = Files()
for epoch in range(2):
    for x, n in DataLoader(data, batch_size=5):
        print(x[:, 0].tolist(), n.tolist())
print("broken files:", data.broken)


class Curriculum(Dataset):
    def __init__(self):
        self.epoch, self.seen = 0, 0

    def __len__(self):
        return 11

    def __getitem__(self, i):
        if self.epoch > 0:
            self.seen += 1
        return torch.tensor(i * 1.0 / (1 + self.seen))


data = Curriculum()
loader = DataLoader(data, batch_size=4)
for data.epoch in range(3):
    print([round(x.sum().item(), 6) for x in loader], data.seen)


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
