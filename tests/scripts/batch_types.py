"""Batches that are named tuples, lists in lists, hold strings, or objects of a class that can pin itself."""
from collections import OrderedDict, namedtuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
Sample = namedtuple("Sample", "x y weight")
x = torch.randn(45, 20)
y = x[:, :4].argmax(1)
net = nn.Linear(20, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.2)


def learn(x, y, weight=None):
    losses = F.cross_entropy(net(x), y, reduction="none")
    loss = losses.mean() if weight is None else (losses * weight).sum() / weight.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


class Packed:
    def __init__(self, samples):
        self.x, self.y = torch.stack([s[0] for s in samples]), torch.stack([s[1] for s in samples])

    def pin_memory(self):
        return self


def loader(sample, **kwargs):
    return DataLoader([sample(i) for i in range(45)], batch_size=12, shuffle=True, **kwargs)


for batch in loader(lambda i: Sample(x[i], y[i], 1.0 + i % 3)):
    print(type(batch).__name__, learn(*batch), batch.weight.sum().item())
for (a, b), [labels, (index, half)] in loader(lambda i: ((x[i, :10], x[i, 10:]), [y[i], (i, i / 2)])):
    print(learn(torch.cat([a, b], dim=1), labels), index.tolist(), half.dtype)
for batch in loader(lambda i: OrderedDict(image=x[i], label=y[i], path=f"img{i}.png")):
    print(type(batch).__name__, learn(batch["image"], batch["label"]), batch["path"][:2])
for names, inputs, labels in loader(lambda i: (f"name{i}", x[i], y[i])):
    print(names[-1], learn(inputs, labels))
for batch in loader(lambda i: (x[i], y[i]), collate_fn=Packed, pin_memory=True):
    print(learn(batch.x, batch.y), len(batch.y))
for one, many in loader(lambda i: (int(y[i]), {"x": x[i], "nested": {"weight": torch.tensor(1.0 + i % 2)}})):
    print(one.dtype, learn(many["x"], one, many["nested"]["weight"]))
torch.save(net.state_dict(), "net.pt")
