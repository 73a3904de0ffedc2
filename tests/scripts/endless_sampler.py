"""Batches without end, by a batch sampler that has no length, as DomainBed's; and draws between them; with and without workers."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Sampler, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
x = torch.randn(57, 20)
data = TensorDataset(x, x[:, :4].argmax(1))


class Endless(Sampler):
    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        while True:
            for batch in self.batches:
                torch.rand(())
                yield batch


net = nn.Linear(20, 4)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for workers in (0, 2):
    inner = BatchSampler(RandomSampler(data, replacement=True), 8, drop_last=True)
    endless = iter(DataLoader(data, num_workers=workers, batch_sampler=Endless(inner)))
    for _ in range(9):
        x, y = next(endless)
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(workers, loss.item(), torch.rand(()).item())
