"""What forward() leaves in a list, a dict and an object that it is given belongs to the caller."""
import dataclasses
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)

class Layer:  # keys and values of one layer, as in Hugging Face's DynamicCache
    keys = None
    def update(self, keys, values):
        self.values = values if self.keys is None else torch.cat([self.values, values], 1)
        self.keys = keys if self.keys is None else torch.cat([self.keys, keys], 1)
        return self.keys, self.values

@dataclasses.dataclass(frozen=True, slots=True)
class Cache:
    layers: list
    notes: dict

class Block(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.number, self.project = number, nn.Linear(4, 12)

    def forward(self, x, kept, cache=None):
        while len(cache.layers) <= self.number:
            cache.layers.append(Layer())
        query, key, value = self.project(x).chunk(3, -1)
        key, value = cache.layers[self.number].update(key, value)
        y = x + torch.softmax(query @ key.transpose(1, 2), -1) @ value + (0.1 * kept[-1] if kept else 0)
        kept.append(y.tanh())
        cache.notes[self.number] = (y.sum(-1), "sum")
        cache.notes["calls"] = cache.notes.get("calls", 0) + 1
        return y

class Net(nn.Module):  # it runs by its parts: the penalty is of the whole batch
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block(k) for k in range(3))

    def forward(self, x):
        kept, cache = [], Cache([], {})
        for block in self.blocks:
            x = block(x, kept, cache=cache)
        assert cache.notes["calls"] == len(kept) == len(cache.layers) == 3
        penalty = sum(k.pow(2).mean() for k in kept) + cache.layers[1].keys.mean()
        return x, penalty + cache.notes[2][0].pow(2).mean()

net, mine, outside = Net(), [], Cache([], {})
optimizer = torch.optim.SGD(net.parameters(), 0.02)
for step, (x,) in enumerate(DataLoader(TensorDataset(torch.randn(40, 3, 4)), batch_size=8)):
    y, penalty = net(x)
    loss = y.pow(2).mean() + penalty
    loss.backward()
    optimizer.step()
    net.blocks[0](x, mine, outside)  # a list and an object of the script's own, filled from call to call
    print(loss.item(), len(mine), outside.layers[0].keys.shape, outside.notes["calls"])
print([tuple(kept.shape) for kept in mine], [kept.sum().item() for kept in mine], outside.layers[0].values.sum((0, 1)))
