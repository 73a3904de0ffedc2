"""Batches cut by hand: numpy slices, one big tensor indexed by randperm, split and chunk, get_batch of text."""
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
rng = np.random.default_rng(0)
X = rng.normal(size=(61, 20))
Y = X[:, :4].argmax(1)
net = nn.Sequential(nn.Linear(20, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


def learn(x, y):
    out = net(x)
    loss = F.cross_entropy(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item(), (out.argmax(1) == y).float().mean().item())


order = np.arange(len(X))
rng.shuffle(order)
for i in range(0, len(X), 16):
    rows = order[i : i + 16]
    learn(torch.from_numpy(X[rows]), torch.tensor(Y[rows]))
x, y = torch.from_numpy(X), torch.from_numpy(Y)
permutation = torch.randperm(len(x))
for i in range(0, len(x), 16):
    learn(x[permutation[i : i + 16]], y[permutation[i : i + 16]])
for a, b in zip(x.chunk(4), y.split(16)):
    learn(a, b)
net.eval()
with torch.no_grad():
    print((net(x).argmax(1) == y).sum().item(), np.mean(net(x).argmax(1).numpy() == Y))
text = torch.from_numpy(rng.integers(0, 11, 300))
model = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 11))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for _ in range(3):
    starts = torch.randint(len(text) - 6, (7,))
    a = torch.stack([text[i : i + 5] for i in starts])
    b = torch.stack([text[i + 1 : i + 6] for i in starts])
    logits = model(a)
    loss = F.cross_entropy(logits.view(-1, 11), b.view(-1))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    print(loss.item())
torch.save([net.state_dict(), model.state_dict()], "net.pt")
