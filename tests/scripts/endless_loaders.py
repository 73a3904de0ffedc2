"""Loaders without end: itertools' cycle, islice and chain, a generator, a batch sampler that has no length."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Sampler, Subset, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
x = torch.randn(57, 20)
data = TensorDataset(x, x[:, :4].argmax(1))


def infinite(loader):
    while True:
        yield from loader


class Endless(Sampler):
    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        while True:
            for batch in self.batches:
                torch.rand(())  # as many are requested ahead as in one process
                yield batch


def learn(batch):
    loss = F.cross_entropy(net(batch[0]), batch[1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


net = nn.Linear(20, 4)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
loader = DataLoader(data, batch_size=16, shuffle=True)
small = DataLoader(Subset(data, range(10)), batch_size=4, shuffle=True)
for batch in itertools.islice(itertools.cycle(loader), 6):
    print("cycle", learn(batch))
forever = infinite(small)
for batch, few in zip(loader, forever):
    print("both", learn(batch), learn(few))
for batch in itertools.chain(small, [next(forever)]):
    print("chain", learn(batch), len(batch[0]))
print("rest", [len(y) for _, y in itertools.islice(forever, 5)])
for workers in (0, 2):
    inner = BatchSampler(RandomSampler(data, replacement=True), 8, drop_last=True)
    endless = iter(DataLoader(data, num_workers=workers, batch_sampler=Endless(inner)))
    for _ in range(9):
        print(workers, learn(next(endless)), torch.rand(()).item())
