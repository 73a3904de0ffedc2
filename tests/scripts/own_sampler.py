"""Samplers: one of one's own that keeps classes in turn, one seeded by a generator of its own."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, Sampler, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class Alternating(Sampler):
    def __init__(self, labels):
        self.by_class = [torch.where(labels == c)[0] for c in (0, 1)]

    def __len__(self):
        return 2 * min(len(c) for c in self.by_class)

    def __iter__(self):
        a, b = (c[torch.randperm(len(c))].tolist() for c in self.by_class)
        for pair in zip(a, b):
            yield from pair


x = torch.randn(70, 20)
y = (x[:, 0] > 0.2).long()
data = TensorDataset(x, y, torch.arange(70))
alternating = DataLoader(data, batch_size=10, sampler=Alternating(y))
generated = DataLoader(data, batch_size=10, sampler=RandomSampler(data, generator=torch.Generator().manual_seed(5)))
net = nn.Linear(20, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.3)
for loader in (alternating, generated, alternating):
    for x, y, i in loader:
        loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item(), i.tolist())
torch.save(net.state_dict(), "net.pt")
