"""itertools over loaders: cycle, islice, chain, a generator of one's own; k-fold with a new model each."""
import itertools

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Subset, SubsetRandomSampler, TensorDataset

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
rng = np.random.RandomState(0)
x = torch.randn(57, 20)
data = TensorDataset(x, x[:, :4].argmax(1))


def infinite(loader):
    while True:
        yield from loader


def learn(net, optimizer, batch):
    loss = F.cross_entropy(net(batch[0]), batch[1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


net = nn.Linear(20, 4)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
loader = DataLoader(data, batch_size=16, shuffle=True)
small = DataLoader(Subset(data, range(10)), batch_size=4, shuffle=True)
for i, batch in enumerate(itertools.islice(itertools.cycle(loader), 6)):
    print("cycle", i, learn(net, optimizer, batch))
forever = infinite(small)
for batch, few in zip(loader, forever):
    print("both", learn(net, optimizer, batch), learn(net, optimizer, few))
for batch in itertools.chain(small, [next(forever)]):
    print("chain", learn(net, optimizer, batch), len(batch[0]))
print("rest", [len(y) for _, y in itertools.islice(forever, 5)])
scores = []
folds = np.array_split(rng.permutation(len(data)), 3)
for fold, held in enumerate(folds):
    torch.manual_seed(fold)
    rest = np.concatenate([f for f in folds if f is not held])
    net = nn.Sequential(nn.Linear(20, 8), nn.Dropout(0.1), nn.ReLU(), nn.Linear(8, 4))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2)
    for batch in DataLoader(data, batch_size=16, sampler=SubsetRandomSampler(rest)):
        last = learn(net, optimizer, batch)
    net.eval()
    with torch.no_grad():
        held_out = DataLoader(data, batch_size=9, sampler=held.tolist())
        scores.append(np.mean([F.cross_entropy(net(x), y).item() for x, y in held_out]))
    torch.save(net.state_dict(), f"fold{fold}.pt")
    print(fold, last, scores[-1])
print(np.mean(scores), np.std(scores))
