"""A stream that shuffles in a buffer, counts its passes and its samples, and ends when it likes."""
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
random.seed(0)
np.random.seed(0)


class Stream(IterableDataset):
    def __init__(self, counts):
        self.counts, self.passes, self.given = counts, 0, 0

    def samples(self):
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for i in range(first, 40, step):
            yield torch.sin(torch.arange(6.0) * (i + 1)) + 0.1 * torch.rand(6), i % 3

    def __iter__(self):
        buffer = []
        for sample in self.samples():
            buffer.append(sample)
            if len(buffer) > 8:
                yield buffer.pop(random.randrange(len(buffer)))
                self.given += self.counts
        random.shuffle(buffer)
        yield from buffer
        self.passes += 1


net = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.Linear(8, 3))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for counts, workers in ((0, 0), (1, 0), (0, 2)):
    stream = Stream(counts)
    loader = DataLoader(stream, batch_size=7, num_workers=workers)
    for epoch in range(2):
        for step, (x, y) in enumerate(loader):
            loss = F.cross_entropy(net(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(workers, step, len(x), loss.item(), stream.given, stream.passes)
        print("passes", stream.passes, random.random(), float(np.random.rand()), torch.rand(1).item())
torch.save(net.state_dict(), "net.pt")
