"""Data sets that load from loaders of their own in the main process, as those of episodes do."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
base = TensorDataset(torch.randn(40, 3))


class Episodes(Dataset):
    def __init__(self, shuffle):
        self.shuffle = shuffle

    def __len__(self):
        return 10

    def __getitem__(self, index):
        support = Subset(base, range(index, index + 6))
        return torch.stack([x.mean(0) for x, in DataLoader(support, 2, shuffle=self.shuffle)])


class Stream(IterableDataset):
    def __iter__(self):
        for (batch,) in DataLoader(base, 4, shuffle=True):
            yield from batch * 2


net = nn.Linear(3, 2)
optimizer = torch.optim.SGD(net.parameters(), 0.05)
for data, size in ((Episodes(False), 4), (Episodes(True), 3), (Stream(), 8), (Stream(), 2)):
    for shuffle in (False,) if isinstance(data, Stream) else (False, True):
        for batch in DataLoader(data, size, shuffle=shuffle):
            optimizer.zero_grad()
            loss = net(batch).square().mean()
            loss.backward()
            optimizer.step()
            print(len(batch), f"{loss.item():.12f}")
    print(f"{torch.rand(1).item():.12f}")
