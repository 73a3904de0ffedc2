"""A batch_sampler groups sequences of like length, so that batches have different sizes."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


class Sequences(Dataset):
    def __init__(self):
        self.x = [torch.randn(3 + i % 4, 5) for i in range(47)]

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], i % 3


class ByLength:
    def __init__(self, data, batch_size):
        order = sorted(range(len(data)), key=lambda i: len(data[i][0]))
        groups = [[i for i in order if len(data[i][0]) == n] for n in (3, 4, 5, 6)]
        self.batches = [g[i : i + batch_size] for g in groups for i in range(0, len(g), batch_size)]

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        yield from (self.batches[i] for i in torch.randperm(len(self)).tolist())


data = Sequences()
loader = DataLoader(data, batch_sampler=ByLength(data, 7))
model = nn.ModuleDict({"rnn": nn.GRU(5, 8, batch_first=True), "out": nn.Linear(8, 3)})
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for x, y in loader:
    loss = F.cross_entropy(model["out"](model["rnn"](x)[0][:, -1]), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(tuple(x.shape), loss.item())
torch.save(model.state_dict(), "model.pt")
