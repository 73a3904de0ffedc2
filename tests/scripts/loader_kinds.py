"""Loaders of one's own make: a subclass, one that moves and normalises, batch_size=None, a stateful one."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import ChainDataset, DataLoader, IterableDataset, StackDataset, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
x = torch.randn(57, 20)
data = TensorDataset(x, x[:, :4].argmax(1))


class Normalised(DataLoader):
    def __iter__(self):
        for x, y in super().__iter__():
            yield (x - x.mean(0)) / x.std(0, unbiased=False), y


class ToDevice:
    def __init__(self, loader, device):
        self.loader, self.device = loader, device

    def __len__(self):
        return len(self.loader)

    def __iter__(self):
        upcoming = None
        for batch in self.loader:
            batch = [t.to(self.device, non_blocking=True) for t in batch]
            if upcoming is not None:
                yield upcoming
            upcoming = batch
        yield upcoming


class Chunks(IterableDataset):
    def __init__(self, size):
        self.size = size

    def __iter__(self):
        yield from zip(x.split(self.size), data.tensors[1].split(self.size))


net = nn.Sequential(nn.Linear(20, 8), nn.ReLU(), nn.Linear(8, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.2)
loaders = {
    "subclass": Normalised(data, batch_size=16, shuffle=True),
    "wrapper": ToDevice(DataLoader(data, batch_size=16, shuffle=True, drop_last=True), "cpu"),
    "chunks": DataLoader(ChainDataset([Chunks(16), Chunks(9)]), batch_size=None),
    "stack": DataLoader(StackDataset(x, data.tensors[1]), batch_size=16, num_workers=1, prefetch_factor=4),
}
for name, loader in loaders.items():
    for x_, y_ in loader:
        loss = F.cross_entropy(net(x_), y_)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(name, len(x_), loss.item())
torch.save(net.state_dict(), "net.pt")
